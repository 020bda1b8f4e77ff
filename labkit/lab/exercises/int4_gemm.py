"""Checks of chapter 07: a tile without bank conflicts, and how many mma a product takes."""

from __future__ import annotations

import random
from collections.abc import Callable

from labkit.lab.bank_strip import bank_passes
from labkit.lab.exercises.running import staged
from labkit.lab.gemm_ladder import run_rung
from labkit.ops.awq_gemm import TILINGS, Tiling

ROWS, PIECES, PIECE = 32, 8, 16  # of the tile; bytes
LANES = 32
BEST = 4  # passes in which 32 lanes get 16 bytes each: a quarter of the warp in each
SWIZZLE = (
    "A row fills all banks once. Where among them lies the wanted piece of each row that is read together?",
    "Exchange the pieces of a row by its number: 8 * row + (piece ^ (row % 8)).",
)
WORK = (
    "How many blocks are there, also where the last ones are not full? How many mma does each do for four inputs?",
    "A block does tiling.rows / 8 times tiling.outputs / 32 mma for each four inputs, full or not.",
)


def check_slots(slot: Callable[[int, int], int]) -> str:
    """Judge ``slot(row, piece)``: where in shared memory a piece of 16 bytes of a tile of 32 rows of 8 pieces lies.

    Slots are counted in pieces, 0 to 255. The check wants each used once, and no bank conflict: neither when a warp
    stores the pieces of four rows one after the other, nor when it loads one piece of rows 8 m to 8 m + 7 for mma,
    lane l that of row 8 m + l % 4 + 4 (l / 16). Raises AssertionError with a hint; returns a sentence of praise.
    """
    slots = {(row, piece): slot(row, piece) for row in range(ROWS) for piece in range(PIECES)}
    for place, number in slots.items():
        inside = isinstance(number, int) and 0 <= number < ROWS * PIECES
        assert inside, f"slot{place} is {number!r}. The tile has slots 0 to {ROWS * PIECES - 1}: no padding."
    assert len(set(slots.values())) == len(slots), "Two pieces lie in one slot."
    for first in range(0, ROWS, LANES // PIECES):
        _want_best([slots[first + t // PIECES, t % PIECES] for t in range(LANES)], f"storing rows {first} and on")
    for first in range(0, ROWS, 8):
        for piece in range(PIECES):
            fragment = [slots[first + lane % 4 + 4 * (lane // 16), piece] for lane in range(LANES)]
            _want_best(fragment, f"loading piece {piece} of rows {first} to {first + 7} for mma")
    return "Right: no bank is asked twice, and no byte is wasted."


def _want_best(slots: list[int], what: str) -> None:
    passes = len(bank_passes([PIECE * slot for slot in slots], PIECE))
    assert passes == BEST, f"Bank conflicts: {what} takes {passes} passes, {BEST} would do. {staged(*SWIZZLE)}"


def check_work(predict: Callable[[int, int, int, Tiling], float], seed: int | None = None) -> str:
    """Judge ``predict(rows, outputs, inputs, tiling)``: the mma of a launch whose blocks compute ``tiling``.

    The truth is what the simulator counts for the rungs 1, 2 and 5. seed: of the drawn shapes.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for rung in ("1_one_warp", "2_swizzled", "5_large_tile"):
        for rows, outputs in ((8, 32), (rng.randint(2, 40), rng.randint(2, 140))):
            counted = run_rung(rung, rows, outputs, 64).counters.mma
            given = predict(rows, outputs, 64, TILINGS[rung])
            assert given == counted, (
                f"{rung}, {rows} rows, {outputs} outputs, 64 inputs: {counted} mma are counted, you say {given}."
                f" {staged(*WORK)}"
            )
    return "Right: to the instruction what the simulator counted."
