"""The calls that ``labkit bench attention`` times: labkit's attention and the library's, over the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from labkit.bench.attention_cases import Geometry
from labkit.bench.attention_data import Pool, dense_cache
from labkit.bench.clock import LABKIT
from labkit.bench.graph_timing import Call
from labkit.ops.attention_decode import attention_decode
from labkit.ops.attention_prefill import attention_prefill
from labkit.ops.paged_kv import KVPages

GATHERED, DENSE = "gather + SDPA", "SDPA dense"  # the library over pages that it copies first; over a dense fp16 cache

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [S, rows, heads, D], K and V [S, kv_heads, N, D] -> as q


def queries(geometry: Geometry, rows: int, device: torch.device | str) -> Tensor:
    """fp16 [rows, heads, D]."""
    return torch.randn(rows, geometry.heads, geometry.head_dim, device=device).half()


def decode_calls(q: Tensor, pool: Pool, rungs: Iterable[str | None]) -> dict[str, list[Call]]:
    """Decode over every batch of the pool, by the name of the rung. q: [sequences, heads, D]."""
    return {
        rung or LABKIT: [partial(attention_decode, q, pool.pages, batch, rung=rung) for batch in pool.batches]
        for rung in rungs
    }


def prefill_calls(qs: list[Tensor], pool: Pool, rungs: Iterable[str | None]) -> dict[str, list[Call]]:
    """Prefill over every batch of the pool, each with its own q [rows, heads, D], by the name of the rung."""
    each = list(zip(qs, pool.batches, strict=True))
    return {
        rung or LABKIT: [partial(attention_prefill, q, pool.pages, batch, rung=rung) for q, batch in each]
        for rung in rungs
    }


def dense_calls(attend: Attend, qs: list[Tensor], caches: list[tuple[Tensor, Tensor]]) -> list[Call]:
    """The library over dense caches."""
    return [partial(attend, q, *cache) for q, cache in zip(qs, caches, strict=True)]


def gathered_calls(attend: Attend, qs: list[Tensor], pool: Pool) -> list[Call]:
    """The library over pages: copied (and dequantized) into a dense cache in every call."""
    tables = [batch.table for batch in pool.batches]
    return [partial(_gathered, attend, q, pool.pages, table) for q, table in zip(qs, tables, strict=True)]


def _gathered(attend: Attend, q: Tensor, pages: KVPages, table: Tensor) -> Tensor:
    return attend(q, *dense_cache(pages, table))


def by_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The library's own grouped-query attention, causal from the end: the last row sees everything."""
    rows, tokens = q.shape[1], k.shape[2]
    mask = None if rows == 1 else causal_lower_right(rows, tokens)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def by_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """For one row a sequence: the query heads of a KV head are rows of one matrix, which all see everything."""
    packed = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
    return F.scaled_dot_product_attention(packed, k, v).view_as(q)
