"""Causal grouped-query attention over paged keys and values: softmax(q k^T / sqrt(D)) v, in fp32.

Decode and prefill both read K and V as stored, the current chunk included, so that chunking, preemption and
(later) prefix hits never change a token. These are the torch references of the paged attention kernels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.ops.paged_kv import KVPages


def attention_decode(q: Tensor, pages: KVPages, table: Tensor, mask: Tensor) -> Tensor:
    """One query token per sequence.

    q: [B, heads, D]; table: [B, P] page indices, padded with page 0; mask: bool [B, 1, 1, P * 64], True where the
    position holds a token of the sequence. Returns [B, heads, D] in q's dtype.

    The query heads of one KV head are packed as rows of one small matrix, so that K and V are read once for all.
    """
    k, v = pages.gather(table)
    batch, heads, dim = q.shape
    packed = q.float().view(batch, k.shape[1], heads // k.shape[1], dim)
    return F.scaled_dot_product_attention(packed, k, v, attn_mask=mask).view(batch, heads, dim).to(q.dtype)


def attention_prefill(q: Tensor, pages: KVPages, table: Tensor, start: int) -> Tensor:
    """A chunk of one sequence: queries at positions start .. start + T - 1.

    q: [T, heads, D]; table: [P] the pages that hold positions 0 .. start + T - 1. Returns [T, heads, D].
    """
    tokens, heads, dim = q.shape
    end = start + tokens
    k, v = (x[:, :end] for x in pages.gather(table))
    group = heads // k.shape[0]
    queries = q.float().transpose(0, 1).view(k.shape[0], group, tokens, dim)
    k, v = (x[:, None].expand(-1, group, -1, -1) for x in (k, v))
    mask = None if start == 0 else causal_mask(tokens, end)
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, is_causal=mask is None)
    return out.reshape(heads, tokens, dim).transpose(0, 1).to(q.dtype)


def causal_mask(tokens: int, end: int) -> Tensor:
    """True where query i (position end - tokens + i) may see key j: bool [tokens, end]."""
    return torch.arange(end)[None, :] <= torch.arange(end - tokens, end)[:, None]
