"""The tensors of a step: the same on the host and on a GPU, which gets them in one copy."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest
import torch
from helpers.pretend_gpu import GPU, GpuTensor, pretend_gpu

from labkit.model.forward_batch import ForwardBatch, SequenceChunk
from labkit.model.one_copy import in_one_copy
from labkit.ops.checks import WIDEST_LOAD
from labkit.ops.layout import PAGE_SIZE


def chunk(length: int, start: int, slot: int) -> SequenceChunk:
    pages = random.sample(range(1 + 40 * slot, 41 + 40 * slot), -(-(start + length) // PAGE_SIZE))
    return SequenceChunk([random.randrange(99) for _ in range(length)], start, pages, slot, random.random() < 0.7)


def random_chunks() -> list[SequenceChunk]:
    lengths = [1] * random.randrange(4) + [random.randrange(2, 150) for _ in range(random.randrange(1, 3))]
    starts = [random.choice((0, 63, 64, 200)) for _ in lengths]
    return [chunk(length, start, slot) for slot, (length, start) in enumerate(zip(lengths, starts, strict=True))]


def test_what_a_step_is_told(seed: int) -> None:
    chunks = [chunk(1, 63, 4), chunk(1, 0, 1), chunk(70, 0, 2), chunk(3, 130, 0)]
    batch = ForwardBatch(chunks)
    assert batch.num_decodes == 2 and batch.last_rows == [0, 1, 71, 74]
    assert batch.states.spans == [(0, 1, 63, 4), (1, 2, 0, 1), (2, 72, 0, 2), (72, 75, 130, 0)]
    assert batch.decoding_states.spans == [(0, 1, 63, 4), (1, 2, 0, 1)]
    assert batch.prefilling_states.spans == [(0, 70, 0, 2), (70, 73, 130, 0)]
    assert batch.sampled_rows.tolist() == [row for c, row in zip(chunks, batch.last_rows, strict=True) if c.samples]
    assert batch.positions.tolist() == [63, 0, *range(70), 130, 131, 132]
    assert batch.kv_slots.page.tolist()[-1] == chunks[3].pages[2] and batch.kv_slots.offset.tolist()[-1] == 4
    assert batch.decoding.lengths.tolist() == [64, 1] and batch.prefilling.lengths.tolist() == [70, 133]


def test_the_same_on_a_gpu(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chunks = random_chunks()
    here = ForwardBatch(chunks)
    with pretend_gpu(monkeypatch) as gpu:
        there = ForwardBatch(chunks, GPU)
        assert gpu.uploads == ["to"] and not gpu.reads
        if there.num_decodes:
            assert there.decoding.spans == here.decoding.spans
            assert there.decoding_states.spans == here.decoding_states.spans
        assert there.prefilling.spans == here.prefilling.spans and there.states.spans == here.states.spans
        assert not gpu.reads  # the host knew them
    compare(vars(here), vars(there))


def compare(ours: Any, theirs: Any) -> None:
    """Equal, tensors by their dtypes and values; theirs are on the GPU."""
    assert type(ours) is type(theirs) or isinstance(theirs, GpuTensor)
    if isinstance(ours, torch.Tensor):
        assert isinstance(theirs, GpuTensor) and theirs.data_ptr() % WIDEST_LOAD == 0
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            compare(ours[name], theirs[name])
    elif type(ours).__module__.startswith("labkit.ops"):
        compare(*({field.name: getattr(x, field.name) for field in fields(x)} for x in (ours, theirs)))
    else:
        assert ours == theirs


def test_on_the_host_nothing_is_copied() -> None:
    given = [torch.arange(3), torch.ones(2, 2)]
    assert all(a is b for a, b in zip(in_one_copy(given, "cpu"), given, strict=True))


def test_tensors_of_all_kinds_in_one_copy(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    given = [torch.arange(5), torch.empty(0, dtype=torch.int32), torch.randn(3, 7).half(), torch.randn(4, 2).T]
    with pretend_gpu(monkeypatch) as gpu:
        moved = in_one_copy(given, "cuda")
        assert len(gpu.uploads) == 1
    for ours, theirs in zip(given, moved, strict=True):
        assert isinstance(theirs, GpuTensor) and torch.equal(ours, theirs.as_subclass(torch.Tensor))
