"""The checks of chapter 07 accept every tile without conflicts and the exact count, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labkit.lab.exercises.int4_gemm import check_slots, check_work
from labkit.ops.awq_gemm import Tiling

Slot = Callable[[int, int], int]
Work = Callable[[int, int, int, Tiling], float]


@pytest.mark.parametrize(
    "slot",
    [
        lambda row, piece: 8 * row + (piece ^ (row % 8)),
        lambda row, piece: 8 * row + (piece ^ (row % 4)),  # a quarter of a warp wants four rows
        lambda row, piece: 8 * row + (piece + row) % 8,
    ],
)
def test_every_swizzle_that_works_passes(slot: Slot) -> None:
    assert check_slots(slot).startswith("Right")


@pytest.mark.parametrize(
    ("slot", "hint"),
    [
        (lambda row, piece: 8 * row + piece, "loading piece 0 of rows 0 to 7 for mma takes 16 passes, 4 would do"),
        (lambda row, piece: 8 * row + (piece ^ (row // 2 % 4)), "loading piece 0 .* takes 8 passes"),
        (lambda row, piece: 32 * piece + row, "storing rows 0 and on takes 32 passes"),
        (lambda row, piece: 9 * row + piece, "no padding"),
        (lambda row, piece: 8 * row + piece // 2, "Two pieces lie in one slot"),
        (lambda row, piece: 8.0 * row + piece, "slot.0, 0. is 0.0"),
    ],
)
def test_conflicts_and_lost_pieces_get_a_hint(slot: Slot, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_slots(slot)


def work(rows: int, outputs: int, inputs: int, tiling: Tiling) -> int:
    blocks = -(-rows // tiling.rows) * -(-outputs // tiling.outputs)
    return blocks * (tiling.rows // 8) * (tiling.outputs // 32) * (inputs // 4)


def test_the_count_of_whole_blocks_passes(seed: int) -> None:
    assert check_work(work, seed).startswith("Right")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rows, outputs, inputs, tiling: rows * outputs * inputs / 1024,
        lambda rows, outputs, inputs, tiling: work(rows, outputs, inputs, Tiling(8, 32, 1)),
        lambda rows, outputs, inputs, tiling: 0,
    ],
)
def test_wrong_counts_get_a_hint(wrong: Work, seed: int) -> None:
    with pytest.raises(AssertionError, match=r"mma are counted, you say .* How many blocks are there"):
        check_work(wrong, seed)
