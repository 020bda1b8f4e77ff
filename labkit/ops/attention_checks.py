"""What both attention operations ask of their arguments, whatever runs them."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.checks import check_tensor
from labkit.ops.layout import HEAD_DIMS
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages

__all__ = ["HEAD_DIMS", "check_attention"]


def check_attention(
    op: str, q: Tensor, pages: KVPages, batch: PagedBatch, gate: Tensor | None, lse: Tensor | None
) -> None:
    """Raises KernelArgumentError, which names what does not fit."""
    check_tensor(op, "q", q)
    heads = q.shape[1] if q.dim() == 3 else 0
    if q.dim() != 3 or q.shape[0] != batch.rows or q.shape[2] != pages.head_dim or heads % pages.kv_heads or not heads:
        wanted = f"[{batch.rows}, a multiple of {pages.kv_heads}, {pages.head_dim}]"
        raise KernelArgumentError(f"{op}: q is {list(q.shape)}; expected is {wanted}.", cure="Check the shapes.")
    for name, tensor, shape in (("gate", gate, q.shape), ("lse", lse, q.shape[:2])):
        if tensor is not None and tensor.shape != shape:
            problem = f"{name} is {list(tensor.shape)}; expected is {list(shape)}"
            raise KernelArgumentError(f"{op}: {problem}.", cure="Check the shapes.")
    if lse is not None and lse.dtype != torch.float32:
        raise KernelArgumentError(f"{op}: lse is {lse.dtype}.", cure="Give an fp32 tensor.")
    batch.check(op, pages.num_pages)
