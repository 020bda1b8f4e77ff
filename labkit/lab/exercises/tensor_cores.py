"""Checks of chapter 04: who holds which element of a tensor core's result, and a product that one warp computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from labkit.device.sources import source_root
from labkit.lab.exercises.running import first_finding, simulate, staged
from labkit.sim.mma import COLUMN, ROW

LANES, REGISTERS, SIDE, K = 32, 8, 16, 4
TOLERANCE = 1e-3  # of sums of at most 64 products of normal random halves; a wrong element is off by about 1
PLACES = (
    "Which bits of the lane's number change the row, which the column? And which bits of i?",
    "row: (lane & 1) + (i & 2) + 4 * (lane // 16); column: (lane & 2) + (i & 4) + (i & 1).",
)
PRODUCT = (
    "Which row of x and which row of w does a lane hold, and where do its eight results belong?",
    "Let q = lane // 4 % 4 and r = lane % 4 + 4 * (lane / 16): the lane holds row 8 * (q % 2) + r of x and row"
    " 8 * (q / 2) + r of w; its results lie in the 8 x 8 tile that begins there.",
)


def check_places(place: Callable[[int, int], tuple[int, int]]) -> str:
    """Judge ``place(lane, i) -> (row, column)`` of register i of C, within the 8 x 8 tile of the lane's quad-pair.

    Raises AssertionError with a hint; returns a sentence of praise.
    """
    for lane in range(LANES):
        for i in range(REGISTERS):
            truth = (int(ROW["f32"][i, lane]), int(COLUMN["f32"][i, lane]))
            given = place(lane, i)
            assert isinstance(given, tuple) and len(given) == 2, "Return two numbers: row, column."
            assert given == truth, f"c{i} of lane {lane} is at {truth}, you say {given}. {staged(*PLACES)}"
    return "Right: all 256 registers."


def check_product(source: str, seed: int | None = None) -> str:
    """Judge a kernel ``product(const half* x, const half* w, float* y, int k)`` that one warp runs: y = x wᵀ.

    x and w are fp16 [16, k], y is fp32 [16, 16], k is a multiple of 4; "common/mma.cuh" is that of cuda/. The check
    wants right results for several k, and one mma for each four inputs. seed: of the drawn values.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for k in (4, 8, 20, 4 * rng.randint(3, 16)):
        result = _run_product(source, k, rng)
        taken = result.counters.mma
        assert taken, f"k = {k}: right, but no tensor core was used."
        assert taken == k // K, (
            f"k = {k}: right, but with {taken} mma. Each multiplies four inputs of all 16 x 16: {k // K} would do."
        )
    return "Right: 16 x 16 results, one mma for each four inputs."


def _run_product(source: str, k: int, rng: random.Random) -> Any:
    draw = torch.Generator().manual_seed(rng.randrange(2**31))
    x, w = (torch.randn(SIDE, k, generator=draw).half() for _ in range(2))
    y = torch.full((SIDE, SIDE), torch.nan)
    result = simulate(source, "product", 1, LANES, [x, w, y, k], include_dirs=[source_root()])
    assert result.ok, f"k = {k}: {first_finding(result)}"
    missed = int(torch.isnan(y).sum())
    assert not missed, f"k = {k}: {missed} results were not written. 32 lanes have 8 each."
    _check_values(y, x.double() @ w.double().T, k)
    return result


def _check_values(y: torch.Tensor, expected: torch.Tensor, k: int) -> None:
    wrong = (y.double() - expected).abs() > TOLERANCE
    if not wrong.any():
        return
    row, column = wrong.nonzero()[0].tolist()
    assert (y.double() - expected.T).abs().max() > TOLERANCE, f"k = {k}: y is the transpose of what it should be."
    raise AssertionError(
        f"k = {k}: y[{row}][{column}] is {y[row, column]:.3f}, not {expected[row, column]:.3f};"
        f" {int(wrong.sum())} of 256 are wrong. {staged(*PRODUCT)}"
    )
