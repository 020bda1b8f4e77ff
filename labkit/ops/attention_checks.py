"""What both attention operations ask of their arguments: first whatever runs them, then the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.device.sources import rung_path
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.checks import WIDEST_LOAD, Tensors, check_tensor, chosen_rung, named_sizes, number
from labkit.ops.layout import HEAD_DIMS, PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import group_size

LOG2_E = 1.4426950408889634
LARGEST_FACTOR = 1e8  # scale times LOG2_E: a score times it is still a float, and differs from "no score yet"


def check_attention(
    op: str, q: Tensor, pages: KVPages, batch: PagedBatch, gate: Tensor | None, lse: Tensor | None
) -> None:
    """Raises KernelArgumentError, which names what does not fit. A GPU is not asked: that would wait for it."""
    for name, given, kind, make in (("pages", pages, KVPages, "zeros"), ("batch", batch, PagedBatch, "of")):
        if not isinstance(given, kind):
            cure = f"Give a {kind.__name__}, as {kind.__name__}.{make} makes it."
            raise KernelArgumentError(f"{op}: {name} is a {type(given).__name__}.", cure=cure)
    stores: Tensors = {}
    for name, store in (("keys", pages.k), ("values", pages.v)):
        stores |= store_tensors(op, name, store, pages.head_dim, store.values.dtype)
    named_sizes(op, stores)
    _check_rows(op, q, pages, batch, gate, lse)
    batch.check(op, pages.num_pages)


def _check_rows(op: str, q: Tensor, pages: KVPages, batch: PagedBatch, gate: Tensor | None, lse: Tensor | None) -> None:
    """What there is one of for each row: q, and what has its shape."""
    check_tensor(op, "q", q)
    heads = q.shape[1] if q.dim() == 3 else 0
    if q.dim() != 3 or q.shape[0] != batch.rows or q.shape[2] != pages.head_dim or heads % pages.kv_heads or not heads:
        wanted = f"[{batch.rows}, a multiple of {pages.kv_heads}, {pages.head_dim}]"
        raise KernelArgumentError(f"{op}: q is {list(q.shape)}; expected is {wanted}.", cure="Check the shapes.")
    for name, tensor, shape in (("gate", gate, q.shape), ("lse", lse, q.shape[:2])):
        if tensor is not None:
            check_tensor(op, name, tensor)
            if tensor.shape != shape:
                problem = f"{name} is {list(tensor.shape)}; expected is {list(shape)}"
                raise KernelArgumentError(f"{op}: {problem}.", cure="Check the shapes.")
    if gate is not None and gate.dtype != q.dtype:
        ours, theirs = (str(x.dtype).removeprefix("torch.") for x in (gate, q))
        raise KernelArgumentError(f"{op}: gate is {ours}, q is {theirs}.", cure=f"Convert the gate to {theirs}.")
    if lse is not None and (lse.dtype != torch.float32 or not lse.is_contiguous()):
        problem = f"lse is {lse.dtype} with strides {lse.stride()}"
        raise KernelArgumentError(f"{op}: {problem}.", cure="Give a dense fp32 tensor: torch.empty(T, heads).")


def checked_scale(op: str, scale: Any, head_dim: int) -> float:
    """D^-0.5 for None. Raises KernelArgumentError for what is no number above 0, or makes scores too large for fp32."""
    factor = head_dim**-0.5 if scale is None else number(op, "scale", scale)
    if not 0 < factor * LOG2_E < LARGEST_FACTOR:
        cure = f"Give a number above 0 and below {LARGEST_FACTOR / LOG2_E:.1e}, as D^-0.5 is."
        raise KernelArgumentError(f"{op}: scale is {factor}.", cure=cure)
    return factor


def check_rung(op: str, rung: str | None, rungs: Sequence[str]) -> None:
    """Raises KernelArgumentError, which names those that there are, for a rung without a file; None is no rung."""
    if rung is None:
        return
    try:
        rung_path(op, chosen_rung(op, rung, rungs))
    except KernelBuildError as error:
        raise KernelArgumentError(error.message, cure=error.cure) from None


def check_for_kernels(op: str, q: Tensor, pages: KVPages, gate: Tensor | None) -> None:
    """What the kernels ask beyond that: fp16, a head dim that is built, pages of K and V that belong together.

    Raises KernelArgumentError.
    """
    if pages.head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        message = f"{op}: head dim {pages.head_dim} is not built; its kernels have {known}."
        raise KernelArgumentError(message, cure="Use the executor torch.")
    named: Tensors = {"q": (q, torch.float16, ("T", "heads", "D"))}
    if gate is not None:
        named["gate"] = gate, torch.float16, ("T", "heads", "D")
    for name, store in (("keys", pages.k), ("values", pages.v)):
        held = store_tensors(op, name, store, pages.head_dim)
        for what, (tensor, _, _) in held.items():
            if isinstance(tensor, Tensor) and tensor.data_ptr() % WIDEST_LOAD:
                cure = f"Let the pool start at a multiple of {WIDEST_LOAD} bytes, as KVPages.zeros does."
                raise KernelArgumentError(f"{op}: {what} start at address {tensor.data_ptr():#x}.", cure=cure)
        named |= held
    named_sizes(op, named)


def store_tensors(op: str, name: str, store: PageStore, head_dim: int, plain: torch.dtype = torch.float16) -> Tensors:
    """The tensors of a store with the dtypes and shapes that its bits ask for; K and V share pages and heads.

    plain: the dtype of a store that is not quantized; the kernels take halves. For ``named_sizes``. Raises
    KernelArgumentError for bits without scales, and the other way round.
    """
    shape = ("pages", "kv_heads", PAGE_SIZE)
    values, params = f"the pages of {name}", f"the scales of {name}"
    if store.bits == 16 and store.params is None:
        return {values: (store.values, plain, (*shape, head_dim))}
    if store.bits == 8 and store.params is not None:
        scales = store.params, torch.float16, shape
        return {values: (store.values, torch.int8, (*shape, head_dim)), params: scales}
    if store.bits == 4 and store.params is not None:
        pairs = store.params, torch.float16, (*shape, head_dim // group_size(head_dim), 2)
        return {values: (store.values, torch.int32, (*shape, head_dim // 8)), params: pairs}
    message = f"{op}: {values} have {store.bits} bits and {'no ' if store.params is None else ''}scales."
    raise KernelArgumentError(message, cure="Make pages with KVPages.zeros.")
