"""Which rows of a step belong to which Gated DeltaNet state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.layout import CHUNK


@dataclass(frozen=True, eq=False)
class StateBatch:
    """Sequences of one step, each with one row or more and with a slot that holds its state.

    slots: int64 [S], each sequence's own. starts: int32 [S], the position of its first row; a sequence at position 0
    has seen nothing, whatever its slot holds. row_starts: int32 [S + 1]: sequence s has rows row_starts[s] ..
    row_starts[s + 1] - 1.

    chunk_starts: int32 [S + 1]: the delta rule works on chunks of 64 positions, which lie on multiples of 64, so the
    first and the last of a sequence may have fewer rows; it has chunks chunk_starts[s] .. chunk_starts[s + 1] - 1.

    rows, chunks, most_rows, most_chunks, largest_slot: all rows and chunks, the most that a sequence has, the greatest
    slot. As plain numbers: launches are sized by them, and a GPU is not asked.
    """

    slots: Tensor
    starts: Tensor
    row_starts: Tensor
    chunk_starts: Tensor
    rows: int
    chunks: int
    most_rows: int
    most_chunks: int
    largest_slot: int

    @classmethod
    def of(
        cls, rows: Sequence[int], starts: Sequence[int], slots: Sequence[int], device: torch.device | str = "cpu"
    ) -> StateBatch:
        """From the number of rows, the first position and the slot of each sequence.

        Raises KernelArgumentError for sequences without rows, before position 0, or with another's slot.
        """
        if not rows or not len(rows) == len(starts) == len(slots):
            message = f"gdn: {len(rows)} counts of rows, {len(starts)} positions, {len(slots)} slots."
            raise KernelArgumentError(message, cure="Give one of each for every sequence, and at least one sequence.")
        for s, (count, start, slot) in enumerate(zip(rows, starts, slots, strict=True)):
            _check_sequence(s, count, start, slot)
        if len(set(slots)) < len(slots):
            raise KernelArgumentError(f"gdn: slots {list(slots)!r:.60}.", cure="Give every sequence its own slot.")
        chunks = [_chunks(count, start) for count, start in zip(rows, starts, strict=True)]
        row_starts, chunk_starts = (list(accumulate(counts, initial=0)) for counts in (rows, chunks))
        numbers = (list(starts), row_starts, chunk_starts)
        first, edges, chunk_edges = (torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)
        counts = row_starts[-1], chunk_starts[-1], max(rows), max(chunks), max(slots)
        return cls(torch.tensor(list(slots), dtype=torch.int64, device=device), first, edges, chunk_edges, *counts)

    @property
    def sequences(self) -> int:
        return self.slots.shape[0]

    def check(self, op: str, slots: int) -> None:
        """Raises KernelArgumentError for a slot that there is not."""
        if self.largest_slot >= slots:
            message = f"{op}: slot {self.largest_slot} of {slots}."
            raise KernelArgumentError(message, cure="Slots count from 0; take them from the states' own scheduler.")

    @cached_property
    def spans(self) -> list[tuple[int, int, int, int]]:
        """Of each sequence: its first row, the row behind its last, its first position, its slot. Waits for a GPU."""
        edges = self.row_starts.tolist()
        return list(zip(edges, edges[1:], self.starts.tolist(), self.slots.tolist(), strict=False))


def _chunks(rows: int, start: int) -> int:
    """How many multiples of 64 positions the rows touch."""
    return (start + rows - 1) // CHUNK - start // CHUNK + 1


def _check_sequence(s: int, rows: int, start: int, slot: int) -> None:
    numbers = (rows, start, slot)
    if not all(isinstance(number, int) and abs(number) < 2**31 for number in numbers) or rows + start >= 2**31:
        message = f"gdn: sequence {s} has {rows!r} rows from position {start!r} and slot {slot!r}."
        raise KernelArgumentError(message, cure="Give whole numbers below 2^31.")
    if rows < 1 or start < 0 or slot < 0:
        message = f"gdn: sequence {s} has {rows} rows from position {start} and slot {slot}."
        raise KernelArgumentError(message, cure="Give it at least one row; positions and slots count from 0.")
