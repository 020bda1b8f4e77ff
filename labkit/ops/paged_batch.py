"""Which rows of queries attend, and in which pages the keys and values of their sequences lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE


@dataclass(frozen=True, eq=False)
class PagedBatch:
    """Sequences that attend in one launch, each with one row of queries or more, the newest tokens that it holds.

    table: int32 [S, P], the page of every 64 tokens, padded with page 0. lengths: int32 [S], tokens in the pages, those
    of this step among them. row_starts: int32 [S + 1]: sequence s has rows row_starts[s] .. row_starts[s + 1] - 1 of
    the queries; its last row stands at position lengths[s] - 1, the one before at lengths[s] - 2, and so on.

    tile_starts: int32 [S + 1]: prefill attention works on tiles of 64 rows of one sequence (its last tile may have
    fewer); sequence s has tiles tile_starts[s] .. tile_starts[s + 1] - 1.

    rows, tiles, longest, most_rows, largest_page: all rows and tiles, the greatest of lengths, of rows of a sequence,
    and of the table; page_counts: pages of each sequence. As plain numbers: launches are sized by them, and a GPU is
    not asked.
    """

    table: Tensor
    lengths: Tensor
    row_starts: Tensor
    tile_starts: Tensor
    rows: int
    tiles: int
    longest: int
    most_rows: int
    largest_page: int
    page_counts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        rows: Sequence[int],
        lengths: Sequence[int],
        pages: Sequence[Sequence[int]],
        device: torch.device | str = "cpu",
    ) -> PagedBatch:
        """From the number of rows, the length and the pages of each sequence. Pages past its length are left out.

        Raises KernelArgumentError for sequences without rows, with more rows than tokens, or with too few pages.
        """
        if not rows or not len(rows) == len(lengths) == len(pages):
            message = f"attention: {len(rows)} counts of rows, {len(lengths)} lengths, {len(pages)} lists of pages."
            raise KernelArgumentError(message, cure="Give one of each for every sequence, and at least one sequence.")
        for s, (count, length, held) in enumerate(zip(rows, lengths, pages, strict=True)):
            _check_sequence(s, count, length, held)
        width = -(-max(lengths) // PAGE_SIZE)
        used = [list(held[: -(-length // PAGE_SIZE)]) for held, length in zip(pages, lengths, strict=True)]
        starts = list(accumulate(rows, initial=0))
        tile_starts = list(accumulate((-(-count // QUERY_TILE) for count in rows), initial=0))
        padded = [held + [0] * (width - len(held)) for held in used]
        table, held_tokens, row_starts, first_tiles = (
            torch.tensor(numbers, dtype=torch.int32, device=device)
            for numbers in (padded, list(lengths), starts, tile_starts)
        )
        largest = max(max(held) for held in used)
        counts = starts[-1], tile_starts[-1], max(lengths), max(rows), largest
        return cls(table, held_tokens, row_starts, first_tiles, *counts, tuple(len(held) for held in used))

    @property
    def sequences(self) -> int:
        return self.table.shape[0]

    def check(self, op: str, num_pages: int) -> None:
        """Raises KernelArgumentError for a page that the pool does not have."""
        if self.largest_page >= num_pages:
            message = f"{op}: the page table names page {self.largest_page} of {num_pages}."
            raise KernelArgumentError(message, cure="Pages count from 0; take the table from the pool's own scheduler.")

    @cached_property
    def spans(self) -> list[tuple[int, int, int]]:
        """Of each sequence: its first row, the row behind its last, and its length. Waits for the device."""
        starts = self.row_starts.tolist()
        return list(zip(starts, starts[1:], self.lengths.tolist(), strict=False))

    @cached_property
    def token_mask(self) -> Tensor:
        """True where a place in the pages holds a token of the sequence: bool [S, 1, 1, P * 64]."""
        places = torch.arange(self.table.shape[1] * PAGE_SIZE, device=self.table.device)
        return (places[None, :] < self.lengths[:, None])[:, None, None, :]


def _check_sequence(s: int, rows: int, length: int, pages: Sequence[int]) -> None:
    numbers = [rows, length, *pages]
    if not all(isinstance(number, int) and abs(number) < 2**31 for number in numbers):
        message = f"attention: sequence {s} has {rows!r} rows, {length!r} tokens, and pages {list(pages)!r:.60}."
        raise KernelArgumentError(message, cure="Give whole numbers below 2^31.")
    if not 1 <= rows <= length:
        message = f"attention: sequence {s} has {rows} rows and {length} tokens."
        raise KernelArgumentError(message, cure="Rows are the newest of the tokens: at least one, at most all.")
    if len(pages) * PAGE_SIZE < length:
        message = f"attention: sequence {s} has {len(pages)} pages for {length} tokens."
        raise KernelArgumentError(message, cure=f"A page holds {PAGE_SIZE} tokens.")
    if min(pages) < 0:
        raise KernelArgumentError(f"attention: sequence {s} names page {min(pages)}.", cure="Pages count from 0.")
