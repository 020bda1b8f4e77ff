"""What one step of the model needs to know, as tensors: tokens, positions, pages and state slots.

Tokens of all sequences lie behind one another. Decodes (one token each) come first and are handled together;
every longer chunk is handled by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch


@dataclass(frozen=True)
class SequenceChunk:
    """Tokens [start, start + length) of one sequence, its page table (plain integers) and its state slot."""

    token_ids: list[int]
    start: int
    pages: list[int]
    slot: int

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True)
class PrefillChunk:
    """One chunk of several tokens: its rows in the batch, its first position and its state slot."""

    rows: slice
    start: int
    slot: int


class ForwardBatch:
    """The tensors of one step, made from chunks; those of one token must come first.

    token_ids, positions: [T]; kv_slots: where K and V of the T tokens are stored;
    num_decodes: leading chunks of one token; prefills: the others.
    """

    def __init__(self, chunks: list[SequenceChunk]) -> None:
        self.chunks = chunks
        self.num_decodes = next((i for i, c in enumerate(chunks) if c.length > 1), len(chunks))
        self.token_ids = torch.tensor([t for c in chunks for t in c.token_ids])
        self.positions = torch.cat([torch.arange(c.start, c.end) for c in chunks])
        self.kv_slots = KVSlots.at(torch.cat([_pages_of_tokens(c) for c in chunks]), self.positions % PAGE_SIZE)
        self.prefills = list(self._prefills())

    def _prefills(self) -> list[PrefillChunk]:
        row, result = self.num_decodes, []
        for chunk in self.chunks[self.num_decodes :]:
            result.append(PrefillChunk(slice(row, row + chunk.length), chunk.start, chunk.slot))
            row += chunk.length
        return result

    @cached_property
    def decoding(self) -> PagedBatch:
        """The pages of the decodes, a row each."""
        return _paged(self.chunks[: self.num_decodes])

    @cached_property
    def prefilling(self) -> PagedBatch:
        """The pages of the longer chunks."""
        return _paged(self.chunks[self.num_decodes :])

    @cached_property
    def decode_slots(self) -> Tensor:
        """State slots of the decodes: [B]."""
        return torch.tensor([c.slot for c in self.chunks[: self.num_decodes]])

    @cached_property
    def last_rows(self) -> Tensor:
        """The row of each chunk's last token: [chunks]."""
        return torch.tensor([c.length for c in self.chunks]).cumsum(0) - 1


def _paged(chunks: list[SequenceChunk]) -> PagedBatch:
    return PagedBatch.of([c.length for c in chunks], [c.end for c in chunks], [c.pages for c in chunks])


def _pages_of_tokens(chunk: SequenceChunk) -> Tensor:
    """The page that holds each of the chunk's tokens: [length]."""
    return torch.tensor(chunk.pages)[torch.arange(chunk.start, chunk.end) // PAGE_SIZE]
