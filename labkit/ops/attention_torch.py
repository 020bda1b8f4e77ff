"""Causal grouped-query attention over paged keys and values in torch: softmax(q k^T scale) v, in fp32.

The executor torch runs these, and they say what the kernels of attention_decode and attention_prefill compute. Both
read K and V as stored, the current chunk included, so that chunking, preemption and (later) prefix hits never change
a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages


def attend(
    q: Tensor, pages: KVPages, batch: PagedBatch, scale: float, gate: Tensor | None = None, lse: Tensor | None = None
) -> Tensor:
    """q: [T, heads, D], rotated where the pages rotate. Returns [T, heads, D] in q's dtype.

    gate: [T, heads, D], the result is multiplied by its sigmoid. lse: fp32 [T, heads], filled with the natural
    logarithm of each row's sum of exponentials.
    """
    if lse is not None:
        out = _with_lse(q, pages, batch, scale, lse)
    elif batch.most_rows == 1:
        out = _one_row_each(q, pages, batch, scale)
    else:
        out = torch.cat([_rows_of_one(q[a:b], pages, batch.table[s], n, scale) for s, (a, b, n) in _spans(batch)])
    return out if gate is None else out * gate.sigmoid()


def _spans(batch: PagedBatch) -> enumerate[tuple[int, int, int]]:
    return enumerate(batch.spans)


def _one_row_each(q: Tensor, pages: KVPages, batch: PagedBatch, scale: float) -> Tensor:
    """The query heads of one KV head are packed as rows of one small matrix: K and V are read once for all."""
    k, v = pages.gather(batch.table)
    sequences, heads, dim = q.shape
    packed = q.float().view(sequences, k.shape[1], heads // k.shape[1], dim)
    out = F.scaled_dot_product_attention(packed, k, v, attn_mask=batch.token_mask, scale=scale)
    return out.view(sequences, heads, dim).to(q.dtype)


def _rows_of_one(q: Tensor, pages: KVPages, table: Tensor, length: int, scale: float) -> Tensor:
    """The rows [T, heads, D] of one sequence that holds ``length`` tokens."""
    tokens, heads, dim = q.shape
    k, v = _tokens(pages, table, length)
    group = heads // k.shape[0]
    queries = q.float().transpose(0, 1).view(k.shape[0], group, tokens, dim)
    k, v = (x[:, None].expand(-1, group, -1, -1) for x in (k, v))
    mask = None if tokens == length else causal_mask(tokens, length, q.device)
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    return out.reshape(heads, tokens, dim).transpose(0, 1).to(q.dtype)


def _with_lse(q: Tensor, pages: KVPages, batch: PagedBatch, scale: float, lse: Tensor) -> Tensor:
    """The same with scores in full, which the library's function does not give away."""
    outputs = []
    for s, (first, behind, length) in _spans(batch):
        k, v = _tokens(pages, batch.table[s], length)
        queries = q[first:behind].float().unflatten(1, (k.shape[0], -1))
        scores = torch.einsum("tkgd,kcd->tkgc", queries, k) * scale
        scores = scores.masked_fill(~causal_mask(behind - first, length, q.device)[:, None, None, :], -torch.inf)
        lse[first:behind] = scores.logsumexp(dim=-1).flatten(1)
        outputs.append(torch.einsum("tkgc,kcd->tkgd", scores.softmax(dim=-1), v).flatten(1, 2).to(q.dtype))
    return torch.cat(outputs)


def _tokens(pages: KVPages, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    used = table[: -(-length // pages.k.values.shape[2])]
    k, v = pages.gather(used)
    return k[:, :length], v[:, :length]


def causal_mask(tokens: int, end: int, device: torch.device | str = "cpu") -> Tensor:
    """True where query i (position end - tokens + i) may see key j: bool [tokens, end]."""
    return torch.arange(end, device=device)[None, :] <= torch.arange(end - tokens, end, device=device)[:, None]
