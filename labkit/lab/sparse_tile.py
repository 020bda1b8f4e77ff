"""One tile of synthetic queries under sparse prefill: what each page is really paid, what is kept, what is off."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.bench.sparse_data import SparseData
from labkit.ops.attention_sparse_torch import attend_kept
from labkit.ops.attention_torch import attend
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.ops.sparse_prefill import choose_pages
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat


@dataclass(frozen=True, eq=False)
class SparseTile:
    """shares: fp32 [heads, 64, P], of each row's attention, exact and causal; kept: bool [heads, P].

    errors: fp32 [heads, 64], of each row: the 2-norm of the difference from dense attention over that of dense.
    """

    shares: Tensor
    kept: Tensor
    errors: Tensor

    @property
    def lost(self) -> Tensor:
        """The share of its attention that each row would pay to pages left out: fp32 [heads, 64]."""
        return (self.shares * ~self.kept[:, None]).sum(-1)


def page_shares(q: Tensor, keys: Tensor, position: int) -> Tensor:
    """How much of its attention each row pays to each page of 64 keys: fp32 [heads, rows, P].

    q: [rows, heads, D], the first at ``position``; keys: [n, D], n a multiple of 64 that has all rows' own tokens.
    """
    logits = torch.einsum("rhd,kd->hrk", q.float(), keys.float()) * q.shape[2] ** -0.5
    future = torch.arange(len(keys)) > position + torch.arange(len(q))[:, None]
    return logits.masked_fill(future, -torch.inf).softmax(-1).unflatten(-1, (-1, PAGE_SIZE)).sum(-1)


def sparse_tile(data: SparseData, tile: int, settings: SparseSettings) -> SparseTile:
    """Choose pages for one tile as the engine does, whatever the threshold says, and attend both ways, in fp32."""
    q, length = data.queries[tile], data.starts[tile] + QUERY_TILE
    count = length // PAGE_SIZE
    k, v = (PageStore(x[:length].reshape(count, 1, PAGE_SIZE, -1), None, 16) for x in (data.keys, data.values))
    pages = KVPages(k, v, KVFormat(torch.float32), q.shape[2])
    batch = PagedBatch.of([QUERY_TILE], [length], [list(range(count))])
    chosen = choose_pages(q, pages, batch, replace(settings, threshold=1))
    kept = torch.zeros(q.shape[1], count, dtype=torch.bool)
    for head, number in enumerate(chosen.count[0].tolist()):
        kept[head, chosen.index[0, head, :number].long()] = True
    exact = attend(q, pages, batch, data.scale)
    off = (attend_kept(q, pages, batch, chosen, data.scale) - exact).norm(dim=-1) / exact.norm(dim=-1)
    return SparseTile(page_shares(q, data.keys[:length], data.starts[tile]), kept, off.T)
