"""Storing keys and values of a step in their pages, and clearing what an earlier owner left behind them.

Pages hold 16, 8 or 4 bits an element (labkit/quant/kv.py); keys in INT4 are rotated on their way.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from labkit.device import Kernel, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, WIDEST_LOAD, Tensors, check_tensor, chosen_rung, named_sizes, span, vector_width
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import HEAD_DIMS, PAGE_SIZE

if TYPE_CHECKING:
    from labkit.ops.paged_kv import KVPages

RUNGS = ["1_naive", "2_count", "3_vector", "4_quantized"]
HALF_PAGES_ONLY = RUNGS[:3]
THREADS = 128


def kv_write(k: Tensor, v: Tensor, slots: KVSlots, pages: KVPages, *, rung: str | None = None) -> None:
    """Store k, v [T, kv_heads, D] in their pages, and clear the rest of fresh pages; k as it comes from RoPE.

    The kernels take fp16, any distance between tokens, and pages in fp16 or with quantized heads of 64, 128 or 256;
    the rungs before the last write fp16 pages only. Raises KernelArgumentError for what they do not take.
    """
    kernels = executor_for(k, v, pages.k.values) != "torch"
    named = {**new_tokens("kv_write", k, v, pages, kernels), **places(slots)}
    if kernels:
        named |= pools("kv_write", pages)
    tokens = named_sizes("kv_write", named)["tokens"]
    check_pages("kv_write", slots, pages)
    if not kernels:
        reference(k, v, slots, pages)
        return
    rung = chosen_rung("kv_write", rung, RUNGS)
    if k.numel():
        _launch(rung, k, v, slots, pages, tokens)


def reference(k: Tensor, v: Tensor, slots: KVSlots, pages: KVPages) -> None:
    """The definition in torch, for pages of any format."""
    pages.k.write(pages.rotated(k), slots)
    pages.v.write(v, slots)


def new_tokens(op: str, k: Tensor, v: Tensor, pages: KVPages, kernels: bool) -> Tensors:
    """What k and v must be, for ``named_sizes``: the kernels take halves, torch any one dtype."""
    check_tensor(op, "k", k)
    dtype = torch.float16 if kernels else k.dtype
    shape = ("tokens", pages.kv_heads, pages.head_dim)
    return {"k": (k, dtype, shape), "v": (v, dtype, shape)}


def places(slots: KVSlots) -> Tensors:
    """The same of the slots: one for every token."""
    return {name: (x, torch.int64, ("tokens",)) for name, x in (("page", slots.page), ("offset", slots.offset))}


def pools(op: str, pages: KVPages) -> Tensors:
    """The same of pages that are not quantized. Raises KernelArgumentError for an address that no kernel takes."""
    stores = {"k_pages": pages.k, "v_pages": pages.v}
    for name, store in stores.items():
        if store.values.data_ptr() % WIDEST_LOAD:
            message = f"{op}: {name} starts at address {store.values.data_ptr():#x}."
            raise KernelArgumentError(message, cure=f"Make it start at a multiple of {WIDEST_LOAD} bytes.")
    pool = ("pages", pages.kv_heads, PAGE_SIZE, pages.head_dim)
    return {name: (store.values, torch.float16, pool) for name, store in stores.items() if store.bits == 16}


def check_pages(op: str, slots: KVSlots, pages: KVPages) -> None:
    """Raises KernelArgumentError for a page that the pool does not have; a GPU is not asked: that would wait for it."""
    if slots.page.is_cuda or not slots.page.numel():
        return
    largest = int(slots.page.max())
    if largest >= pages.num_pages:
        message = f"{op}: page {largest} of {pages.num_pages} is written."
        raise KernelArgumentError(message, cure="Pages count from 0.")


def check_head_dim(op: str, head_dim: int) -> None:
    """Raises KernelArgumentError for heads that the kernels are not built for."""
    if head_dim not in HEAD_DIMS:
        cure = f"Its kernels are built for heads of {', '.join(map(str, HEAD_DIMS))}; others run on the executor torch."
        raise KernelArgumentError(f"{op}: heads of {head_dim} elements.", cure=cure)


def macros(kv_heads: int, head_dim: int, vec: int = 0, k_bits: int = 16, v_bits: int = 16) -> dict[str, int]:
    """How the kernels are compiled; vec 0: the widest loads that the sizes allow.

    Raises KernelArgumentError for heads that cannot be quantized.
    """
    vec = vec or vector_width(8, [head_dim], [])
    if not k_bits == v_bits == 16:
        check_head_dim("kv_write", head_dim)
        vec = min(vec, head_dim // WARP)
    heads = {"KV_HEADS": kv_heads, "HEAD_DIM": head_dim}
    return {**heads, "PAGE_SIZE": PAGE_SIZE, "THREADS": THREADS, "VEC": vec, "K_BITS": k_bits, "V_BITS": v_bits}


def _launch(rung: str, k: Tensor, v: Tensor, slots: KVSlots, pages: KVPages, tokens: int) -> None:
    heads, dim, bits = pages.kv_heads, pages.head_dim, (pages.k.bits, pages.v.bits)
    if rung in HALF_PAGES_ONLY and bits != (16, 16):
        message = f"kv_write: the rung {rung} writes fp16 pages, not {pages.format.name}."
        raise KernelArgumentError(message, cure=f"Choose {RUNGS[-1]}.")
    k, v = (x if x.stride()[1:] == (dim, 1) else x.contiguous() for x in (k, v))
    width = vector_width(8, [dim, k.stride(0), v.stride(0)], [k, v])
    kernel = _kernel(rung, heads, dim, width, *bits)
    into: list[Tensor | None] = [pages.k.values, pages.v.values]
    if rung not in HALF_PAGES_ONLY:
        into = pages.tensors
    grid = (tokens, heads if rung in HALF_PAGES_ONLY else -(-2 * heads // (THREADS // WARP)))
    where = [slots.page, slots.offset, *into]
    kernel.launch(grid, THREADS, [span(k), span(v), *where, tokens, k.stride(0), v.stride(0)])


@cache
def _kernel(rung: str, kv_heads: int, head_dim: int, vec: int, k_bits: int, v_bits: int) -> Kernel:
    return Kernel("kv_write", rung, "kv_write", macros(kv_heads, head_dim, vec, k_bits, v_bits))
