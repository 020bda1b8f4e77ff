"""The short convolution of Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), and the norms of what comes out.

    c[t] = silu(sum over j of weight[:, j] * input[t - W + 1 + j])      q, k, v = split(c)
    q = q / sqrt(sum(q^2) + 1e-6) * dk^-0.5      k = k / sqrt(sum(k^2) + 1e-6)      v stays as it is

A causal filter over the last W inputs of every channel, with silu(x) = x / (1 + exp(-x)); the sums are those of a head.
The last W - 1 inputs of a sequence are its history: what the filter of its next step begins with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops import gdn
from labkit.ops.checks import Tensors, aligned, check_tensor, chosen_rung, named_sizes, span, vector_width
from labkit.ops.layout import GDN_DIMS
from labkit.ops.rmsnorm import l2norm
from labkit.ops.state_batch import StateBatch

OP = "gdn_conv"
RUNGS = ["1_naive", "2_fused"]
WIDTHS = (2, 3, 4)  # inputs of the convolutions that the kernels are built for
THREADS = 64  # no block shares anything: small ones spread a decoding step over more multiprocessors
RUN = 16  # rows that a warp walks
PER_LANE = 4  # channels


def gdn_conv(
    u: Tensor,
    weight: Tensor,
    history: Tensor,
    batch: StateBatch,
    key_heads: int,
    key_dim: int,
    *,
    rung: str | None = None,
) -> Tensor:
    """u: [T, C] projections of the step's rows, channels q | k | v; returns the normalised [T, C], dense.

    weight: fp32 [C, W]; history: [slots, W - 1, C] in u's dtype, oldest first, updated in place. A sequence that starts
    at position 0 begins with zeros: what its slot holds is not read. q and k have key_heads heads of key_dim.
    The rows of u may lie apart, as those of a part of a projection do. The kernels take fp16 and return it; the
    definition returns fp32. Raises KernelArgumentError for what they do not take.
    """
    kernels = executor_for(u, weight, history) != "torch"
    _check(u, weight, history, batch, key_heads, key_dim, kernels)
    if not kernels:
        return reference(u, weight, history, batch, key_heads, key_dim)
    rung = chosen_rung(OP, rung, RUNGS)
    _check_built(u, history, key_heads, key_dim, weight.shape[1])
    u = u if u.stride(1) == 1 else u.contiguous()
    step = _Step(rung, u, aligned(weight), history, batch, key_heads, key_dim)
    return step.naive() if rung == "1_naive" else step.fused()


def reference(u: Tensor, weight: Tensor, history: Tensor, batch: StateBatch, key_heads: int, key_dim: int) -> Tensor:
    """The definition in torch, fp32. The sequences of one row that come first, decodes, go together."""
    out = torch.empty(u.shape, dtype=torch.float32, device=u.device)
    steps = _leading_steps(batch)
    if steps:
        slots, seen = batch.slots[:steps], batch.starts[:steps] > 0
        past = torch.where(seen[:, None, None], history[slots], 0)
        out[:steps], history[slots] = gdn.causal_conv_step(u[:steps], past, weight)
    for first, end, start, slot in batch.spans[steps:] if steps < batch.sequences else []:
        past = history[slot] if start else torch.zeros_like(history[slot])
        out[first:end], history[slot] = gdn.causal_conv(u[first:end], past, weight)
    heads = out[:, : 2 * key_heads * key_dim].unflatten(1, (2 * key_heads, key_dim))
    heads.copy_(l2norm(heads))
    heads[:, :key_heads] *= key_dim**-0.5
    return out


def macros(key_dim: int, width: int = 4, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled for any number of heads; vec 0: the widest loads.

    Raises KernelArgumentError for heads and convolutions that the kernels are not built for.
    """
    if key_dim not in GDN_DIMS:
        cure = f"Its kernels are built for heads of {_listed(GDN_DIMS)}; others run on the executor torch."
        raise KernelArgumentError(f"{OP}: heads of q and k have {key_dim} elements.", cure=cure)
    if width not in WIDTHS:
        cure = f"Its kernels are built for {_listed(WIDTHS)}; others run on the executor torch."
        raise KernelArgumentError(f"{OP}: a convolution over {width} inputs.", cure=cure)
    return {"KEY_DIM": key_dim, "WIDTH": width, "RUN": RUN, "THREADS": THREADS, "VEC": vec or PER_LANE}


@cache
def _kernel(rung: str, entry: str, key_dim: int, width: int, vec: int) -> Kernel:
    return Kernel(OP, rung, entry, macros(key_dim, width, vec))


@dataclass(frozen=True)
class _Step:
    """Checked arguments of one call, and its launches."""

    rung: str
    u: Tensor
    weight: Tensor
    history: Tensor
    batch: StateBatch
    key_heads: int
    key_dim: int

    def fused(self) -> Tensor:
        """One launch. Its runs are counted without a look at the rows of each sequence: the source says how."""
        out, channels = self._new(), self.u.shape[1]
        grid = (self.batch.rows // RUN + self.batch.sequences, -(-channels // (THREADS * PER_LANE)))
        numbers = [self.batch.sequences, channels, self.key_heads * self.key_dim, self._stride]
        inputs = [span(self.u), self.weight, self.history, *self._where]
        self._launch(OP, grid, THREADS, [*inputs, Out(out), *numbers])
        return out

    def naive(self) -> Tensor:
        """Three launches: no block may write the history while another reads it."""
        out, channels, u = self._new(), self.u.shape[1], span(self.u)
        blocks, rows = channels // THREADS, self.batch.rows
        inputs = [u, self.weight, self.history, *self._where]
        self._launch(OP, (rows, blocks), THREADS, [*inputs, Out(out), self.batch.sequences, channels, self._stride])
        self._launch("normalise_heads", (rows, 2 * self.key_heads), self.key_dim, [out, self.key_heads, channels])
        kept = [u, self.history, *self._where, channels, self._stride]
        self._launch("keep_history", (self.batch.sequences, blocks), THREADS, kept)
        return out

    def _launch(self, entry: str, grid: tuple[int, int], threads: int, arguments: list[Any]) -> None:
        vec = vector_width(PER_LANE, [self._stride], [self.u, self.history])
        _kernel(self.rung, entry, self.key_dim, self.weight.shape[1], vec).launch(grid, threads, arguments)

    def _new(self) -> Tensor:
        return torch.empty(self.u.shape, dtype=self.u.dtype, device=self.u.device)

    @property
    def _stride(self) -> int:
        return self.u.stride(0) if self.u.shape[0] > 1 else 0

    @property
    def _where(self) -> list[Tensor]:
        return [self.batch.slots, self.batch.starts, self.batch.row_starts]


def _leading_steps(batch: StateBatch) -> int:
    """How many sequences with one row stand before the first with more. Asks no GPU where all have one."""
    if batch.most_rows == 1:
        return batch.sequences
    return next(s for s, (first, end, *_) in enumerate(batch.spans) if end - first > 1)


def _check(
    u: Tensor, weight: Tensor, history: Tensor, batch: StateBatch, key_heads: int, key_dim: int, kernels: bool
) -> None:
    """What every executor asks. Raises KernelArgumentError."""
    for name, x in (("u", u), ("weight", weight)):
        check_tensor(OP, name, x)
    dtype = torch.float16 if kernels else u.dtype
    past = weight.shape[1] - 1 if weight.dim() == 2 else 0
    named: Tensors = {
        "u": (u, dtype, (batch.rows, "channels")),
        "weight": (weight, torch.float32, ("channels", "inputs")),
        "history": (history, dtype, ("slots", past, "channels")),
    }
    sizes = named_sizes(OP, named)
    if past < 1:
        message = f"{OP}: a convolution over {past + 1} inputs."
        raise KernelArgumentError(message, cure="Give weights of two inputs at least.")
    batch.check(OP, sizes["slots"])
    for name, size in (("key_heads", key_heads), ("key_dim", key_dim)):
        if not isinstance(size, int) or size < 1:
            raise KernelArgumentError(f"{OP}: {name} is {size!r:.40}.", cure="Give a whole number, at least 1.")
    if 2 * key_heads * key_dim >= sizes["channels"]:
        message = f"{OP}: q and k with {key_heads} heads of {key_dim} leave no v in {sizes['channels']} channels."
        raise KernelArgumentError(message, cure="Check the shapes.")


def _check_built(u: Tensor, history: Tensor, key_heads: int, key_dim: int, width: int) -> None:
    """What the kernels ask besides. Raises KernelArgumentError."""
    macros(key_dim, width)
    if u.shape[1] % GDN_DIMS[0]:
        message = f"{OP}: v has {u.shape[1] - 2 * key_heads * key_dim} channels."
        cure = f"Its kernels are built for heads of {_listed(GDN_DIMS)}; others run on the executor torch."
        raise KernelArgumentError(message, cure=cure)
    if not history.is_contiguous():
        message = f"{OP}: history, which changes in place, is not dense (strides {list(history.stride())})."
        raise KernelArgumentError(message, cure="Allocate it in this shape, or use the executor torch.")


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
