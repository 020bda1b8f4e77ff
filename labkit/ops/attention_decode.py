"""Attention: to be replaced by the decode ladder."""

from __future__ import annotations

from torch import Tensor

from labkit.ops.attention_checks import check_attention
from labkit.ops.attention_torch import attend
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages


def attention_decode(
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    *,
    scale: float | None = None,
    gate: Tensor | None = None,
    lse: Tensor | None = None,
    rung: str | None = None,
) -> Tensor:
    """q: [T, heads, D] -> [T, heads, D]."""
    check_attention("attention_decode", q, pages, batch, gate, lse)
    return attend(q, pages, batch, pages.head_dim**-0.5 if scale is None else scale, gate, lse)
