"""Checks of chapter 02: an index that makes neighbours of neighbours, and a transpose without conflicts."""

from __future__ import annotations

import random
from typing import Any

import torch

from labkit.lab.exercises.running import first_finding, simulate, staged

BLOCK, TILE = 64, 32
BEST = 4  # sectors that 32 neighbouring floats fill
CONFLICTS = (
    "Which bank does each lane of a warp want, where the tile is written, and where it is read?",
    "Lanes that read down a column of the tile meet one bank: move its rows apart, by padding or by a swizzle.",
)


def check_doubled(source: str, seed: int | None = None) -> str:
    """Judge a kernel ``doubled(const float* x, float* y, int rows, int cols)`` that should set y = 2 x.

    The matrices lie row by row. It is launched with enough blocks of 64 threads for one element a thread. The check
    wants right results for ragged shapes, and 4 sectors for each request. seed: of the drawn shapes and values.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for rows, cols in ((1, 1), (5, 7), (33, 31), (rng.randint(2, 40), rng.randint(2, 40))):
        _run_doubled(source, rows, cols, rng)
    for rows, cols in ((64, 64), (32, 96)):
        counters = _run_doubled(source, rows, cols, rng).counters
        _want_four(counters.global_load.sectors_per_request, f"{rows} x {cols}: loads")
        _want_four(counters.global_store.sectors_per_request, f"{rows} x {cols}: stores")
    return f"Right: {BEST} sectors for each request, and every byte that moves is used."


def _run_doubled(source: str, rows: int, cols: int, rng: random.Random) -> Any:
    x, y = _random(rows, cols, rng), torch.full((rows, cols), float("nan"))
    result = simulate(source, "doubled", -(-rows * cols // BLOCK), BLOCK, [x, y, rows, cols])
    _want_clean(result, f"{rows} x {cols}")
    missed = int(torch.isnan(y).sum())
    assert not missed, f"{rows} x {cols}: {missed} elements were not written. Each needs a thread of its own."
    assert torch.equal(y, 2 * x), f"{rows} x {cols}: y is not 2 x everywhere. Change only which thread takes which."
    return result


def check_transpose(source: str, seed: int | None = None) -> str:
    """Judge a kernel ``transpose(const float* x, float* y, int rows, int cols)``: y[j][i] = x[i][j].

    It is launched with blocks of 32 x 32 threads, a block for each 32 x 32 tile of x. The check wants right results
    for ragged shapes, 4 sectors for each request to global memory, and no bank conflicts. seed: of shapes and values.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for rows, cols in ((1, 1), (33, 20), (rng.randint(2, 70), rng.randint(2, 70))):
        _run_transpose(source, rows, cols, rng)
    counters = _run_transpose(source, 64, 96, rng).counters
    _want_four(counters.global_load.sectors_per_request, "Loads")
    _want_four(
        counters.global_store.sectors_per_request, "Stores", "Write rows of y: pass the tile through __shared__."
    )
    lost = counters.bank_conflicts
    assert lost == 0, (
        f"Right, and 4 sectors a request, but {lost} cycles are lost to bank conflicts. {staged(*CONFLICTS)}"
    )
    return "Right: no sector moves in vain, and no bank is asked twice."


def _run_transpose(source: str, rows: int, cols: int, rng: random.Random) -> Any:
    x, y = _random(rows, cols, rng), torch.full((cols, rows), float("nan"))
    grid = (-(-cols // TILE), -(-rows // TILE))
    result = simulate(source, "transpose", grid, (TILE, TILE), [x, y, rows, cols])
    _want_clean(result, f"{rows} x {cols}")
    missed = int(torch.isnan(y).sum())
    assert not missed, f"{rows} x {cols}: {missed} elements of y were not written. Mind the guard on either side."
    assert torch.equal(y, x.T), f"{rows} x {cols}: y is not the transpose of x."
    return result


def _random(rows: int, cols: int, rng: random.Random) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(rng.randrange(2**31)))


def _want_clean(result: Any, shape: str) -> None:
    assert result.ok, f"{shape}: {first_finding(result)}"


def _want_four(sectors: float, what: str, hint: str = "Which index should grow from one lane to the next?") -> None:
    assert sectors <= BEST, f"Right, but slow. {what} take {sectors:.1f} sectors each, {BEST} would do. {hint}"
