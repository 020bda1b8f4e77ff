"""Rows, chunks and slots of a step's sequences, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.errors import KernelArgumentError
from labkit.ops.state_batch import StateBatch


def test_rows_and_chunks() -> None:
    batch = StateBatch.of([1, 64, 65, 2], [0, 1, 64, 63], [3, 0, 7, 1])
    assert batch.row_starts.tolist() == [0, 1, 65, 130, 132] and batch.rows == 132 and batch.most_rows == 65
    assert batch.chunk_starts.tolist() == [0, 1, 3, 5, 7] and batch.chunks == 7 and batch.most_chunks == 2
    assert batch.spans == [(0, 1, 0, 3), (1, 65, 1, 0), (65, 130, 64, 7), (130, 132, 63, 1)]
    assert batch.sequences == 4 and batch.slots.dtype == torch.int64 and batch.starts.dtype == torch.int32


def test_every_chunk_lies_within_64_positions(seed: int) -> None:
    for _ in range(200):
        rows, start = (int(torch.randint(low, 300, ())) for low in (1, 0))
        touched = {position // 64 for position in range(start, start + rows)}
        assert StateBatch.of([rows], [start], [0]).chunks == len(touched)


@pytest.mark.parametrize(
    ("rows", "starts", "slots", "told"),
    [
        ([], [], [], "at least one sequence"),
        ([1], [0, 1], [0], "one of each"),
        ([0], [0], [0], "at least one row"),
        ([1], [-1], [0], "count from 0"),
        ([1], [0], [-1], "count from 0"),
        ([1.5], [0], [0], "whole numbers"),
        ([2], [2**31 - 1], [0], "whole numbers"),
        ([1, 1], [0, 0], [4, 4], "its own slot"),
    ],
)
def test_refused(rows: Any, starts: Any, slots: Any, told: str) -> None:
    with pytest.raises(KernelArgumentError, match=told):
        StateBatch.of(rows, starts, slots)


def test_a_slot_that_there_is_not() -> None:
    batch = StateBatch.of([1], [0], [8])
    batch.check("gdn_conv", 9)
    with pytest.raises(KernelArgumentError, match="gdn_conv: slot 8 of 8"):
        batch.check("gdn_conv", 8)
