"""From the projections of a step to what attention reads: queries on one side, pages of keys and values on the other.

    q = rotate(rope(norm(q)))       k = rotate(rope(norm(k)))       k and v into their pages

norm: RMSNorm of each head, for models that have it. rope: on the first R dimensions of a head. rotate: the Hadamard
rotation of labkit/quant/kv.py, for formats whose keys need it. As one operation q and k stay in registers between the
steps, in fp32, where separate operations round them to halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops import kv_write, rmsnorm, rope
from labkit.ops.checks import WARP, Tensors, aligned, chosen_rung, named_sizes, number, span, vector_width
from labkit.ops.kv_slots import KVSlots
from labkit.ops.kv_write import check_head_dim, check_pages, new_tokens, places, pools
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages

OP = "qk_norm_rope_kv"
RUNGS = ["1_separate", "2_fused"]
THREADS = 128
WARPS = THREADS // WARP


def qk_norm_rope_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: KVSlots,
    pages: KVPages,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    rung: str | None = None,
) -> Tensor:
    """Store k, v [T, kv_heads, D] in the pages; return q [T, heads, D], dense, in its dtype, as attention takes it.

    cos, sin: a ``rope_table``, fp32 [T, 1, R]. q_norm, k_norm: fp32 [D], plain weights of the norms; None: no norm.
    q, k and v may be views with any distance between tokens and between heads, parts of one projection say.
    The kernels take fp16 and heads of 64, 128 or 256. Raises KernelArgumentError for what they do not take.
    """
    kernels = executor_for(q, k, v, pages.k.values) != "torch"
    sizes = _sizes(q, k, v, cos, sin, slots, pages, q_norm, k_norm, kernels)
    epsilon = number(OP, "eps", eps)
    if not kernels:
        return reference(q, k, v, cos, sin, slots, pages, q_norm=q_norm, k_norm=k_norm, eps=epsilon)
    check_head_dim(OP, sizes["D"])
    rung = chosen_rung(OP, rung, RUNGS)
    if not sizes["tokens"] or not sizes["heads"]:
        return torch.empty_like(q)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    q_norm, k_norm = (None if weight is None else aligned(weight) for weight in (q_norm, k_norm))
    step = _Step(q, k, v, aligned(cos), aligned(sin), q_norm, k_norm, slots, pages, epsilon, rung)
    return step.separate() if rung == "1_separate" else step.fused()


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: KVSlots,
    pages: KVPages,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """The definition in torch: one operation after the other, each rounding to the dtype of q and k."""
    q, k = (x if weight is None else rmsnorm.reference(x, weight, eps) for x, weight in ((q, q_norm), (k, k_norm)))
    q, k = rope.reference(q, cos, sin), rope.reference(k, cos, sin)
    kv_write.reference(k, v, slots, pages)
    return pages.rotated(q).to(q.dtype)


def macros(
    head_dim: int, rotary_dim: int, normed: tuple[bool, bool], bits: tuple[int, int], vec: int = 0
) -> dict[str, int]:
    """How the kernels are compiled. normed: whether q and k have norms; bits: of K and V; vec 0: the widest loads.

    Raises KernelArgumentError for heads that the kernels are not built for.
    """
    check_head_dim(OP, head_dim)
    flags = {"Q_NORM": int(normed[0]), "K_NORM": int(normed[1]), "K_BITS": bits[0], "V_BITS": bits[1]}
    sizes = {"HEAD_DIM": head_dim, "ROTARY_DIM": rotary_dim}
    return {**sizes, **flags, "PAGE_SIZE": PAGE_SIZE, "THREADS": THREADS, "VEC": vec or head_dim // WARP}


@dataclass(frozen=True)
class _Step:
    """Checked arguments of one call, and its launches."""

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    slots: KVSlots
    pages: KVPages
    eps: float
    rung: str

    def fused(self) -> Tensor:
        """One launch."""
        q, k, v = self.q, self.k, self.v
        turned = q.new_empty(q.shape)
        inputs = [span(q), span(k), span(v), self.cos, self.sin, self.q_norm, self.k_norm]
        counts = [q.shape[0], q.shape[1], k.shape[1]]
        strides = [*_strides(q), *_strides(k), *_strides(v)]
        where = [self.slots.page, self.slots.offset, Out(turned), *self.pages.tensors]
        self._launch(OP, q.shape[1] + 2 * k.shape[1], [*inputs, *where, *counts, *strides, self.eps])
        return turned

    def separate(self) -> Tensor:
        """A launch for every step that there is; each leaves halves."""
        q, k = self.q, self.k
        if self.q_norm is not None or self.k_norm is not None:
            q, k = self._heads("norm_heads", q, k, [self.q_norm, self.k_norm], [self.eps])
        q, k = self._heads("turn_heads", q, k, [self.cos, self.sin], [])
        if self.pages.format.rotates:
            q, k = self._heads("rotate_heads", q, k, [], [])
        counts = [k.shape[0], k.shape[1]]
        where = [self.slots.page, self.slots.offset, *self.pages.tensors]
        strides = [*_strides(k), *_strides(self.v)]
        self._launch(OP, 2 * k.shape[1], [span(k), span(self.v), *where, *counts, *strides])
        return q

    def _heads(self, entry: str, q: Tensor, k: Tensor, tensors: list[Any], numbers: list[float]) -> list[Tensor]:
        """One step from q and k to dense q and k."""
        made = [x.new_empty(x.shape) for x in (q, k)]
        counts = [q.shape[1], k.shape[1]]
        arguments = [span(q), span(k), *tensors, *map(Out, made), *counts, *_strides(q), *_strides(k), *numbers]
        self._launch(entry, sum(counts), arguments)
        return made

    def _launch(self, entry: str, heads: int, arguments: list[Any]) -> None:
        kernel = _kernel(self.rung, entry, *self._shape)
        kernel.launch((self.q.shape[0], -(-heads // WARPS)), THREADS, arguments)

    @property
    def _shape(self) -> tuple[int, int, bool, bool, int, int, int]:
        dim = self.q.shape[2]
        apart = [distance for x in (self.q, self.k, self.v) for distance in _strides(x)]
        vec = vector_width(dim // WARP, apart, [self.q, self.k, self.v])
        norms = self.q_norm is not None, self.k_norm is not None
        return dim, self.cos.shape[-1], *norms, self.pages.k.bits, self.pages.v.bits, vec


@cache
def _kernel(
    rung: str, entry: str, dim: int, rotary_dim: int, q_norm: bool, k_norm: bool, k_bits: int, v_bits: int, vec: int
) -> Kernel:
    return Kernel(OP, rung, entry, macros(dim, rotary_dim, (q_norm, k_norm), (k_bits, v_bits), vec))


def _strides(x: Tensor) -> tuple[int, int]:
    """Elements from one token and from one head to the next; 0 where there is no next."""
    token, head = (x.stride(i) if x.shape[i] > 1 else 0 for i in (0, 1))
    return token, head


def _sizes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: KVSlots,
    pages: KVPages,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    kernels: bool,
) -> dict[str, int]:
    """tokens, heads, D, R, after a look at every argument."""
    new = new_tokens(OP, k, v, pages, kernels)
    named: Tensors = {"q": (q, new["k"][1], ("tokens", "heads", "D")), **new, **places(slots)}
    named |= {name: (x, torch.float32, ("tokens", 1, "R")) for name, x in (("cos", cos), ("sin", sin))}
    norms = {"q_norm": q_norm, "k_norm": k_norm}
    named |= {name: (x, torch.float32, (pages.head_dim,)) for name, x in norms.items() if x is not None}
    if kernels:
        named |= pools(OP, pages)
    sizes = named_sizes(OP, named)
    if sizes["D"] != pages.head_dim:
        raise KernelArgumentError(
            f"{OP}: heads of q have {sizes['D']} elements, those of the pages {pages.head_dim}.",
            cure="Make the pages for this model.",
        )
    if sizes["R"] > sizes["D"] or sizes["R"] % 2:
        message = f"{OP}: {sizes['R']} of {sizes['D']} dimensions turn."
        raise KernelArgumentError(message, cure="Rotate an even part of a head.")
    check_pages(OP, slots, pages)
    return sizes
