"""Paged keys and values (PagedAttention, Kwon et al. 2023, arXiv:2309.06180), and writing into them.

A page holds 64 tokens of one sequence, for every KV head: [pages, kv_heads, 64, head_dim] for K and for V.
Page 0 is never handed out: padding entries of a page table point to it, and it stays zero.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from labkit.device import Kernel, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import check_tensor, chosen_rung, named_sizes, span, vector_width
from labkit.ops.layout import PAGE_SIZE
from labkit.quant.kv import dequantize_int8, quantize_int8

RUNGS = ["1_naive", "2_count", "3_vector"]
THREADS = 128


@dataclass(frozen=True)
class KVSlots:
    """Where the tokens of a step are stored; the same in every layer.

    page, offset: int64 [T]; tokens of one page lie next to one another, in order. fresh: pages whose first slot is
    written. They are cleared first: what an earlier owner left in them (a NaN, say) must not reach masked positions,
    since 0 * NaN is NaN.

    Raises KernelArgumentError for tensors in CPU memory that do not keep to this; a GPU is not asked, since asking
    would wait for it.
    """

    page: Tensor
    offset: Tensor
    fresh: Tensor

    def __post_init__(self) -> None:
        named = (("page", self.page), ("offset", self.offset), ("fresh", self.fresh))
        for name, tensor in named:
            check_tensor("kv_write", name, tensor)
            if tensor.dtype != torch.int64 or tensor.dim() != 1:
                problem = f"is {tensor.dtype} with {tensor.dim()} dimensions"
                raise KernelArgumentError(f"kv_write: {name} {problem}.", cure="Give int64 tensors of one dimension.")
        if not any(tensor.is_cuda for _, tensor in named):
            _check_slots(self.page.tolist(), self.offset.tolist(), self.fresh.tolist())

    @classmethod
    def at(cls, page: Tensor, offset: Tensor) -> KVSlots:
        """The slots of tokens that may begin pages: those with offset 0 are fresh."""
        if page.shape != offset.shape:
            raise KernelArgumentError(
                f"kv_write: page is {list(page.shape)}, offset {list(offset.shape)}.", cure="Give one of each a token."
            )
        return cls(page, offset, page[offset == 0])


def _check_slots(pages: list[int], offsets: list[int], fresh: list[int]) -> None:
    if len(pages) != len(offsets):
        message = f"kv_write: page has {len(pages)} tokens, offset {len(offsets)}."
        raise KernelArgumentError(message, cure="Give one of each for every token.")
    if pages and (min(pages) < 0 or min(offsets) < 0 or max(offsets) >= PAGE_SIZE):
        message = f"kv_write: page is {min(pages)} or more, offset {min(offsets)} to {max(offsets)}."
        raise KernelArgumentError(message, cure=f"Pages count from 0, and offsets are 0 to {PAGE_SIZE - 1}.")
    begun = [page for page, offset in zip(pages, offsets, strict=True) if offset == 0]
    if set(begun) != set(fresh):
        message = f"kv_write: fresh is {sorted(set(fresh))}, but offset 0 is written in {sorted(set(begun))}."
        raise KernelArgumentError(message, cure="Make slots with KVSlots.at.")
    steps = zip(pages, offsets, pages[1:], offsets[1:], strict=False)
    broken = sum(p == q and i + 1 != j for p, i, q, j in steps)
    runs = sum(p != q for p, q in itertools.pairwise(pages)) + bool(pages)
    if broken or runs != len(set(pages)):
        cure = "Put the tokens of a page next to one another, in order."
        raise KernelArgumentError("kv_write: the tokens of a page lie apart or out of order.", cure=cure)


@dataclass
class KVPages:
    """The pages of one attention layer.

    k, v: [pages, kv_heads, 64, head_dim] in the model dtype or int8;
    k_scale, v_scale: fp16 [pages, kv_heads, 64] for int8, else None.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @classmethod
    def zeros(cls, num_pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVPages:
        """An empty pool; its memory is only touched where pages are used."""
        shape = (num_pages, kv_heads, PAGE_SIZE, head_dim)
        k, v = _lazy_zeros(shape, dtype), _lazy_zeros(shape, dtype)
        if dtype != torch.int8:
            return cls(k, v)
        return cls(k, v, *(_lazy_zeros(shape[:-1], torch.float16) for _ in range(2)))

    def write(self, k: Tensor, v: Tensor, slots: KVSlots) -> None:
        """Store k, v [T, kv_heads, head_dim] where ``slots`` says, quantizing if the pages are int8."""
        if self.k_scale is None or self.v_scale is None:
            kv_write(k, v, slots, self.k, self.v)
            return
        for values, scales, new in ((self.k, self.k_scale, k), (self.v, self.v_scale, v)):
            if len(slots.fresh):
                values[slots.fresh] = 0
            q, scale = quantize_int8(new)
            scales[slots.fresh] = 0
            values[slots.page, :, slots.offset], scales[slots.page, :, slots.offset] = q, scale

    def gather(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Read whole pages: table [..., P] -> K and V as stored, fp32 [..., kv_heads, P * 64, head_dim]."""
        return _gather(self.k, self.k_scale, table), _gather(self.v, self.v_scale, table)


def kv_write(
    k: Tensor, v: Tensor, slots: KVSlots, k_pages: Tensor, v_pages: Tensor, *, rung: str | None = None
) -> None:
    """Store k, v [T, kv_heads, D] in k_pages, v_pages [pages, kv_heads, 64, D], and clear the rest of fresh pages.

    The kernels take fp16 and any distance between tokens.
    Raises KernelArgumentError for shapes and dtypes that they do not take.
    """
    if executor_for(k, v, k_pages, v_pages) == "torch":
        reference(k, v, slots, k_pages, v_pages)
        return
    rung = chosen_rung("kv_write", rung, RUNGS)
    new, pool = ("tokens", "kv_heads", "D"), ("pages", "kv_heads", PAGE_SIZE, "D")
    halves = {"k": (k, new), "v": (v, new), "k_pages": (k_pages, pool), "v_pages": (v_pages, pool)}
    places = {name: (x, torch.int64, ("tokens",)) for name, x in (("page", slots.page), ("offset", slots.offset))}
    named = {name: (x, torch.float16, dimensions) for name, (x, dimensions) in halves.items()}
    sizes = named_sizes("kv_write", {**named, **places})
    if not k.numel():
        return
    if not k.is_cuda and int(slots.page.max()) >= sizes["pages"]:
        message = f"kv_write: page {int(slots.page.max())} of {sizes['pages']} is written."
        raise KernelArgumentError(message, cure="Pages count from 0.")
    dim = sizes["D"]
    k, v = (x if x.stride()[1:] == (dim, 1) else x.contiguous() for x in (k, v))
    width = vector_width(8, [dim, k.stride(0), v.stride(0)], [k, v, k_pages, v_pages])
    kernel = _kernel(rung, sizes["kv_heads"], dim, width)
    where = [slots.page, slots.offset, k_pages, v_pages, sizes["tokens"], k.stride(0), v.stride(0)]
    kernel.launch((sizes["tokens"], sizes["kv_heads"]), THREADS, [span(k), span(v), *where])


def reference(k: Tensor, v: Tensor, slots: KVSlots, k_pages: Tensor, v_pages: Tensor) -> None:
    """The definition in torch, for pages of any floating-point dtype."""
    for values, new in ((k_pages, k), (v_pages, v)):
        if len(slots.fresh):
            values[slots.fresh] = 0
        values[slots.page, :, slots.offset] = new.to(values.dtype)


def macros(kv_heads: int, head_dim: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled; vec 0: the widest loads that the sizes allow."""
    vec = vec or vector_width(8, [head_dim], [])
    heads = {"KV_HEADS": kv_heads, "HEAD_DIM": head_dim}
    return {**heads, "PAGE_SIZE": PAGE_SIZE, "THREADS": THREADS, "VEC": vec}


@cache
def _kernel(rung: str, kv_heads: int, head_dim: int, vec: int) -> Kernel:
    return Kernel("kv_write", rung, "kv_write", macros(kv_heads, head_dim, vec))


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that the system hands out page by page on first use; torch.zeros would write all of them at once."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)


def _gather(values: Tensor, scales: Tensor | None, table: Tensor) -> Tensor:
    pages = values[table].transpose(-4, -3)
    if scales is not None:
        pages = dequantize_int8(pages, scales[table].transpose(-3, -2))
    return pages.to(torch.float32, memory_format=torch.contiguous_format).flatten(-3, -2)
