"""Storing keys and values of a step in their pages, and clearing what an earlier owner left behind them."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import chosen_rung, named_sizes, span, vector_width
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE

RUNGS = ["1_naive", "2_count", "3_vector"]
THREADS = 128


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
