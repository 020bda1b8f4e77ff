"""Prefill attention over kept pages in torch: only these are read, dequantized and multiplied.

    out[row, head] = sum over the keys of the kept pages that the row may see of softmax(q . k scale) v

The executor torch runs this, and it says what the kernels of attention_prefill compute with a list of kept pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.ops.attention_torch import attend
from labkit.ops.kept_pages import KeptPages, tile_pages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore


def attend_kept(
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    kept: KeptPages,
    scale: float,
    gate: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """q: [T, heads, D], rotated where the pages rotate. Returns [T, heads, D] in q's dtype.

    gate: [T, heads, D], the result is multiplied by its sigmoid. lse: fp32 [T, heads], filled with the natural
    logarithm of each row's sum of exponentials. Where every page is kept, this is ``attend``, bit for bit.
    """
    ends = torch.tensor([end for _, end in tile_pages(batch)], device=kept.count.device)
    if bool((kept.count == ends[:, None]).all()):
        return attend(q, pages, batch, scale, gate, lse)
    out, group, tile = torch.empty_like(q), q.shape[1] // pages.kv_heads, 0
    for s, (first, behind, length) in enumerate(batch.spans):
        for row in range(first, behind, QUERY_TILE):
            rows = slice(row, min(row + QUERY_TILE, behind))
            positions = torch.arange(length - behind + row, length - behind + rows.stop, device=q.device)
            for head, count in enumerate(kept.count[tile].tolist()):
                places = kept.index[tile, head, :count].long()
                k, v = (_keys(store, batch.table[s, places], head // group) for store in (pages.k, pages.v))
                out[rows, head], sums = _attend(q[rows, head], k, v, _positions(places), positions, scale)
                if lse is not None:
                    lse[rows, head] = sums
            tile += 1
    return out if gate is None else out * gate.sigmoid()


def _keys(store: PageStore, pages: Tensor, kv_head: int) -> Tensor:
    """K or V of one head of some pages: fp32 [n, D]."""
    params = None if store.params is None else store.params[:, kv_head : kv_head + 1]
    return PageStore(store.values[:, kv_head : kv_head + 1], params, store.bits).gather(pages)[0]


def _positions(places: Tensor) -> Tensor:
    """Where the tokens of pages stand in their sequence: [n]."""
    return (places[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=places.device)).flatten()


def _attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The rows q [R, D] at positions ``rows`` to keys at positions ``keys``, and the logarithms of the sums [R].

    What lies behind the last row may be anything, NaN too, and must not be multiplied.
    """
    written = keys <= rows[-1]
    k, v = k[written], v[written]
    scores = (q.float() @ k.T * scale).masked_fill(keys[written] > rows[:, None], -torch.inf)
    return (scores.softmax(dim=-1) @ v).to(q.dtype), scores.logsumexp(dim=-1)
