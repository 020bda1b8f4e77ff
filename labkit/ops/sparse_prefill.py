"""Sparse prefill: which pages of the context a tile of 64 queries attends to, chosen head by head without training.

Kept are the *sink* pages at the start of the sequence, the *recent* pages before the tile, the tile's own, and the
*anchor* pages, those that hold the most attention. How much a page holds is estimated from two sides:

    rows   the 8 rows of the tile that are most unlike each other, against every key: their attention is exact;
    keys   all 64 rows against the 8 keys of each page that are most unlike each other, each counted for the keys that
           are nearer to it than to the other seven.

A page's score is the most attention that any of these rows pays to it. Scores add up, from the highest down, to the
share ``mass`` of their sum; a page that gets a tenth of the attention of any one row (``needle``) is kept in any case.

Either side costs an eighth of the products q . k, a 16th of dense attention; together an eighth of it.

What was tried, on data like that of `labkit bench sparse` (32K tokens, heads of 128, two draws, mass 0.8). A needle is
asked for by a row that was turned to its key, or is a key that was turned to a row like any other. Needles found, in
this order, of 56 and 87:

    mean query and mean keys (pooled)                 30 %    33 %
    every 8th row                                     26 %    58 %  (of 31 and 12)
    the 8 most different rows                        100 %    60 %
    these, and sums of 4 rows less their mean        100 %    89 %
    the 8 most different keys of a page, all rows     95 %    98 %
    both sides, and needle 0.1 (this)                100 %   100 %

How many pages the default mass of 0.95 keeps, how many needles that misses and how far off the output is, from 8K to
64K tokens and for a real text, stands in docs/sparse.md. (Measured in fp32, on a CPU.)

The average over rows instead of the maximum lost a third to more than half of the first kind even with exact scores of
all 64 rows.

A tile consists of rows that are computed together: 64 rows from the start of a chunk on. Which pages it keeps depends
on these rows and on the stored keys alone. The engine cuts a prompt at multiples of 64 and at its end, nowhere else,
and leaves pages out for no other rows: however it is cut, its tiles are the same, and so is what they keep. (But for
ties: queries and keys come from products that may round differently beside other rows.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.attention_checks import check_attention
from labkit.ops.checks import number
from labkit.ops.kept_pages import KeptPages, tile_pages
from labkit.ops.layout import QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages
from labkit.ops.sparse_keys import KeySamples, farthest_first, rows_at, sample_keys
from labkit.ops.sparse_scores import SEGMENTS, page_scores
from labkit.ops.sparse_settings import SparseSettings

SAMPLED_ROWS = 8
TILES_AT_A_TIME = 8  # bounds the memory of scores: 200 MB for 12 heads at 64K tokens


def applies(batch: PagedBatch, settings: SparseSettings, which: Sequence[bool] | None = None) -> bool:
    """Whether any tile has so much context that it attends sparsely; which: sequences that may, all unless given."""
    if settings.mass >= 1 or batch.longest < settings.threshold:
        return False  # known without waiting for the lengths on the device
    lengths = [length for _, _, length in batch.spans]
    which = _all(batch) if which is None else which
    return any(may and length >= settings.threshold for may, length in zip(which, lengths, strict=True))


def choose_pages(
    q: Tensor,
    pages: KVPages,
    batch: PagedBatch,
    settings: SparseSettings,
    scale: float | None = None,
    which: Sequence[bool] | None = None,
) -> KeptPages:
    """q: [T, heads, D], rotated where the pages rotate; K of these rows is in the pages already.

    which: the sequences of the batch for which pages may be left out, all unless given; the others keep every page.
    The scores are those of ``page_scores``, which has kernels; what is made of them is made in torch, on the device.
    Nothing is random. Raises KernelArgumentError as attention does, and for other settings, scales and ``which``.
    """
    check_attention("sparse_prefill", q, pages, batch, None, None)
    which, factor = _check_choice(pages, batch, settings, scale, which)
    if not applies(batch, settings, which):
        return KeptPages.all_of(batch, q.shape[1])
    chooser = _Chooser(q, pages, batch, settings, factor, which)
    keep = torch.cat([chooser.keep(tiles) for tiles in torch.arange(batch.tiles).split(TILES_AT_A_TIME)])
    order = keep.logical_not().to(torch.int8).argsort(dim=-1, stable=True)
    return KeptPages(order.to(torch.int32), keep.sum(-1, dtype=torch.int32))


def _check_choice(
    pages: KVPages, batch: PagedBatch, settings: SparseSettings, scale: float | None, which: Sequence[bool] | None
) -> tuple[Sequence[bool], float]:
    """``which`` and the scale, or what they are unless given. Raises KernelArgumentError."""
    if not isinstance(settings, SparseSettings):
        message = f"sparse_prefill: settings is a {type(settings).__name__}."
        raise KernelArgumentError(message, cure="Give SparseSettings.")
    factor = pages.head_dim**-0.5 if scale is None else number("sparse_prefill", "scale", scale)
    if not math.isfinite(factor):
        raise KernelArgumentError(f"sparse_prefill: scale is {factor}.", cure="Give a finite number, as D^-0.5 is.")
    which = _all(batch) if which is None else which
    if not isinstance(which, Sequence) or len(which) != batch.sequences:
        message = f"sparse_prefill: which is {which!r:.60} for {batch.sequences} sequences."
        raise KernelArgumentError(message, cure="Give a list of True or False, one for each, or leave it out.")
    return which, factor


class _Chooser:
    """What all tiles of a step share."""

    def __init__(
        self,
        q: Tensor,
        pages: KVPages,
        batch: PagedBatch,
        settings: SparseSettings,
        scale: float,
        which: Sequence[bool],
    ) -> None:
        self.q, self.pages, self.batch, self.settings, self.scale = q, pages, batch, settings, scale
        self.bounds = tile_pages(batch)
        self.sequences, self.first_rows, self.ends = _tiles(batch)
        dense = [end < settings.threshold or not which[s] for s, end in zip(self.sequences, self.ends, strict=True)]
        self.asked = [0 if is_dense else own for (own, _), is_dense in zip(self.bounds, dense, strict=True)]
        self.samples: KeySamples = sample_keys(pages.k, batch.table, self._full_pages())

    def _full_pages(self) -> list[int]:
        """Of each sequence, the pages that some tile asks about."""
        most = [0] * self.batch.sequences
        for sequence, asked in zip(self.sequences, self.asked, strict=True):
            most[sequence] = max(most[sequence], asked)
        return most

    def keep(self, tiles: Tensor) -> Tensor:
        """Which pages some tiles keep: bool [tiles, heads, P]."""
        numbers = tiles.tolist()
        asked, own = self._column([self.asked[t] for t in numbers]), self._column([self.bounds[t][0] for t in numbers])
        places = torch.arange(self.batch.table.shape[1], device=self.q.device)
        always = (places < self.settings.sink) | (places >= own - self.settings.recent) | (asked == 0)
        inside = places < self._column([self.bounds[t][1] for t in numbers])
        if not any(self.asked[t] for t in numbers):
            return (always & inside).expand(-1, self.q.shape[1], -1)
        return anchors(self._scores(numbers), always, places < own, self.settings) & inside

    def _column(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.q.device)[:, None, None]

    def _scores(self, tiles: list[int]) -> Tensor:
        """The most attention that any row pays to each page: fp32 [tiles, heads, P], 0 behind those asked about."""
        kv_heads, width = self.pages.kv_heads, self.batch.table.shape[1]
        x = self.q[self._rows(tiles)].transpose(1, 2)  # [tiles, heads, 64, D]
        sampled = rows_at(x, farthest_first(x, SAMPLED_ROWS))
        device = x.device
        sequences, visible = (
            torch.tensor([numbers[t] for t in tiles], dtype=torch.int32, device=device)
            for numbers in (self.sequences, self.asked)
        )
        by_head = (x.shape[0], kv_heads, -1, x.shape[3])
        exact = page_scores(sampled.reshape(by_head), self.pages.k, self.batch.table, sequences, visible, self.scale)
        packed = -(-visible // SEGMENTS)
        near = page_scores(
            x.reshape(by_head),
            self.samples.keys,
            self.samples.table,
            sequences,
            packed.to(torch.int32),
            self.scale,
            weights=self.samples.weights,
        )
        near = torch.nn.functional.pad(near, (0, max(0, width - near.shape[-1])), value=-torch.inf)[..., :width]
        near = near.masked_fill(torch.arange(width, device=device) >= visible[:, None, None, None], -torch.inf)
        return torch.maximum(*(_most_of_a_row(s.unflatten(2, (x.shape[1] // kv_heads, -1))) for s in (exact, near)))

    def _rows(self, tiles: list[int]) -> Tensor:
        """The rows of tiles among the queries: int64 [tiles, 64]; a short tile has its last one several times."""
        behind = [behind for _, behind, _ in self.batch.spans]
        rows = [[min(self.first_rows[t] + r, behind[self.sequences[t]] - 1) for r in range(QUERY_TILE)] for t in tiles]
        return torch.tensor(rows, device=self.q.device)


def _most_of_a_row(scores: Tensor) -> Tensor:
    """[tiles, kv_heads, group, rows, P] logarithms -> [tiles, heads, P], the largest share of a row's total."""
    shares = scores.softmax(dim=-1).nan_to_num()  # a tile that asks about nothing has only -inf
    return shares.amax(dim=3).flatten(1, 2)


def anchors(scores: Tensor, always: Tensor, asked: Tensor, settings: SparseSettings) -> Tensor:
    """Which pages are kept: bool [tiles, heads, P].

    scores: fp32 [tiles, heads, P]; always, asked: bool [tiles, 1, P], pages kept in any case, and those that compete.
    """
    weight = scores / scores.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    given = (weight * (always & asked)).sum(-1, keepdim=True)
    ranked, order = torch.where(always, -1.0, weight).sort(dim=-1, descending=True, stable=True)
    ahead = ranked.clamp(min=0).double()  # a GPU may add in any order: in fp64 that decides nothing
    before = given + ahead.cumsum(-1) - ahead
    wanted = (before < settings.mass) | (scores.gather(-1, order) >= settings.needle)
    wanted &= ranked > 0
    if settings.most is not None:
        left = settings.most - (always & asked).sum(-1, keepdim=True)
        wanted &= torch.arange(wanted.shape[-1], device=wanted.device) < left
    return torch.zeros_like(wanted).scatter(-1, order, wanted) | always


def _all(batch: PagedBatch) -> list[bool]:
    return [True] * batch.sequences


def _tiles(batch: PagedBatch) -> tuple[list[int], list[int], list[int]]:
    """Of each tile: its sequence, its first row among the queries, and the tokens up to its last row."""
    found = []
    for s, (first, behind, length) in enumerate(batch.spans):
        for row in range(first, behind, QUERY_TILE):
            last = min(row + QUERY_TILE, behind) - 1
            found.append((s, row, length - (behind - 1 - last)))
    sequences, rows, ends = zip(*found, strict=True)
    return list(sequences), list(rows), list(ends)
