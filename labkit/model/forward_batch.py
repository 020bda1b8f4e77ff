"""What one step of the model needs to know, as tensors: tokens, positions, pages and state slots.

Tokens of all sequences lie behind one another, those of decodes (one each) first. All is put together and checked on
the host, then moved to the model's device in one copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import accumulate, islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from labkit.model.one_copy import in_one_copy
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.sparse_settings import SparseSettings
from labkit.ops.state_batch import StateBatch


@dataclass(frozen=True)
class SequenceChunk:
    """Tokens [start, start + length) of one sequence, its page table (plain integers) and its state slot.

    samples: whether somebody wants the logits behind its last token. sparse: whether attention may leave pages out for
    it, if the batch does so at all.
    """

    token_ids: list[int]
    start: int
    pages: list[int]
    slot: int
    samples: bool = False
    sparse: bool = False

    @property
    def decodes(self) -> bool:
        """Whether it is handled as a decode: a single token, unless it is the last tile of a sparse prompt."""
        return len(self.token_ids) == 1 and not self.sparse

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class ForwardBatch:
    """The tensors of one step, made from chunks; those that ``decodes`` must come first.

    token_ids, positions: int64 [T]; kv_slots: where K and V of the T tokens are stored;
    num_decodes: how many of the chunks decode; sampled_rows: int64, the last rows of the chunks that sample, in their
    order; last_rows: those of all chunks, as plain numbers; sparse: what prefill attention may leave out, None:
    nothing; sparse_prefills: which of the prefills it may leave it out for.
    """

    def __init__(
        self, chunks: list[SequenceChunk], device: torch.device | str = "cpu", sparse: SparseSettings | None = None
    ) -> None:
        self.chunks, self.sparse = chunks, sparse
        self.num_decodes = next((i for i, c in enumerate(chunks) if not c.decodes), len(chunks))
        self.sparse_prefills = [c.sparse for c in chunks[self.num_decodes :]]
        self.last_rows = [end - 1 for end in accumulate(c.length for c in chunks)]
        positions = torch.cat([torch.arange(c.start, c.end) for c in chunks])
        slots = KVSlots.at(torch.cat([_pages_of_tokens(c) for c in chunks]), positions % PAGE_SIZE)
        groups = chunks[: self.num_decodes], chunks[self.num_decodes :]
        paged = [_paged(group) for group in groups]
        states = [_states(group) for group in (chunks, *groups)]
        tables = [tensor for part in (slots, *paged, *states) for tensor in _tensors_of(part)]
        moved = iter(in_one_copy([*self._numbers(), positions, *tables], device))
        self.token_ids, self.sampled_rows, self.positions = islice(moved, 3)
        self.kv_slots = KVSlots(*islice(moved, 3))
        self._decoding, self._prefilling = (_replaced(part, moved) for part in paged)
        self._states, self._decoding_states, self._prefilling_states = (_replaced(part, moved) for part in states)

    @property
    def decoding(self) -> PagedBatch:
        """The pages of the decodes, a row each; only where there are any."""
        assert self._decoding is not None
        return self._decoding

    @property
    def prefilling(self) -> PagedBatch:
        """The pages of the prefills; only where there are any."""
        assert self._prefilling is not None
        return self._prefilling

    @property
    def states(self) -> StateBatch:
        """Rows and state slots of all chunks."""
        assert self._states is not None
        return self._states

    @property
    def decoding_states(self) -> StateBatch:
        """Those of the decodes; only where there are any."""
        assert self._decoding_states is not None
        return self._decoding_states

    @property
    def prefilling_states(self) -> StateBatch:
        """Those of the prefills, whose rows count from the first of them; only where there are any."""
        assert self._prefilling_states is not None
        return self._prefilling_states

    def _numbers(self) -> list[Tensor]:
        """Token ids, and rows that are sampled: on the host."""
        lists = (
            [token for chunk in self.chunks for token in chunk.token_ids],
            [row for chunk, row in zip(self.chunks, self.last_rows, strict=True) if chunk.samples],
        )
        return [torch.tensor(numbers, dtype=torch.int64) for numbers in lists]


Part = TypeVar("Part", PagedBatch, StateBatch)


def _paged(chunks: list[SequenceChunk]) -> PagedBatch | None:
    if not chunks:
        return None
    return PagedBatch.of([c.length for c in chunks], [c.end for c in chunks], [c.pages for c in chunks])


def _states(chunks: list[SequenceChunk]) -> StateBatch | None:
    if not chunks:
        return None
    return StateBatch.of([c.length for c in chunks], [c.start for c in chunks], [c.slot for c in chunks])


def _tensors_of(value: KVSlots | PagedBatch | StateBatch | None) -> list[Tensor]:
    """Its tensors, in the order of its fields."""
    if value is None:
        return []
    return [tensor for field in fields(value) if isinstance(tensor := getattr(value, field.name), Tensor)]


def _replaced(part: Part | None, moved: Iterator[Tensor]) -> Part | None:
    """The same with its tensors elsewhere; what the host has worked out stays known, so that a GPU is not asked."""
    if part is None:
        return None
    names = [field.name for field in fields(part) if isinstance(getattr(part, field.name), Tensor)]
    elsewhere: dict[str, Any] = dict(zip(names, moved, strict=False))
    other = replace(part, **elsewhere)
    vars(other)["spans"] = part.spans
    return other


def _pages_of_tokens(chunk: SequenceChunk) -> Tensor:
    """The page that holds each of the chunk's tokens: [length]."""
    return torch.tensor(chunk.pages)[torch.arange(chunk.start, chunk.end) // PAGE_SIZE]
