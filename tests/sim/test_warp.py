"""Shuffles, votes and matches against lane-by-lane references from the PTX manual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.sim import run

SOURCE = (Path(__file__).parent / "cuda" / "warp.cu").read_text()


def sim(name: str, grid: Any, block: Any, *args: Any) -> Any:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args))


def shuffled(mode: str, values: list[int], b: list[int], c: list[int]) -> tuple[list[int], list[int]]:
    """The pseudo-code of the PTX manual for one warp."""
    result, in_range = [], []
    for lane in range(32):
        operand, clamp, segment = b[lane] & 31, c[lane] & 31, c[lane] >> 8 & 31
        highest, lowest = (lane & segment) | (clamp & ~segment), lane & segment
        source = {"up": lane - operand, "down": lane + operand, "bfly": lane ^ operand}.get(
            mode, lowest | (operand & ~segment)
        )
        inside = source >= highest if mode == "up" else source <= highest
        result.append(values[source if inside else lane])
        in_range.append(int(inside))
    return result, in_range


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_with_any_operands(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2**32, 128).astype(np.uint32), rng.integers(0, 40, 128).astype(np.int32)
    widths = 32 - 2 ** rng.integers(0, 6, 128)
    c = ((widths << 8) | (0 if mode == "up" else 31)).astype(np.int32)
    o, p = np.zeros(128, np.uint32), np.zeros(128, np.int32)
    result = sim(f"{mode}_varying", 2, 64, a, b, c, o, p)
    assert result.ok, result
    for warp in range(4):
        lanes = slice(32 * warp, 32 * warp + 32)
        assert (o[lanes].tolist(), p[lanes].tolist()) == shuffled(
            mode, a[lanes].tolist(), b[lanes].tolist(), c[lanes].tolist()
        )


def test_shuffles_by_constants(seed: int) -> None:
    a, o = np.random.default_rng(seed).integers(0, 1000, 192).astype(np.int32), np.zeros((6, 192), np.int32)
    assert sim("fixed", 3, 64, a, o).ok
    warps, lane = a.reshape(-1, 32), np.arange(32)
    expected = [
        warps[:, np.where(lane >= 3, lane - 3, lane)],
        warps[:, np.where(lane % 16 < 11, lane + 5, lane)],
        warps[:, lane ^ 9],
        warps[:, (lane & 24) + 6],
        np.repeat([[0], [0], [1], [1], [2], [2]], 32, 1),
        np.full((6, 32), 7),
    ]
    for found, wanted in zip(o, expected, strict=True):
        assert (found.reshape(-1, 32) == wanted).all()


@pytest.mark.parametrize("limit", [32, 20, 1])
def test_votes_and_matches(seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (2, 2, 32)).astype(np.int32)
    a[0, 0], a[0, 1] = 3, rng.integers(1, 4, 32)
    o = np.zeros((9, 2, 2, 32), np.uint32)
    result = sim("ballots", 2, 64, a, o, limit)
    assert result.ok, result
    members = (1 << limit) - 1
    for block in range(2):
        for warp in range(2):
            x = a[block, warp, :limit].tolist()
            yes = sum(1 << lane for lane in range(limit) if x[lane] > 0)
            for lane in range(limit):
                same = sum(1 << other for other in range(limit) if x[other] == x[lane])
                assert [int(v) for v in o[:, block, warp, lane]] == [
                    yes,
                    any(v > 2 for v in x),
                    all(v > -3 for v in x),
                    yes in (0, members),
                    same,
                    (members + 1) % 2**32,
                    members,
                    same,
                    members * (block & 1),
                ]


def test_teams_of_lanes_vote_apart(seed: int) -> None:
    a, o = np.random.default_rng(seed).integers(0, 8, (4, 32)).astype(np.int32), np.zeros((4, 32), np.uint32)
    result = sim("teams", 2, 64, a, o)
    assert result.ok, result
    for x, found in zip(a.tolist(), o.tolist(), strict=True):
        odd, even = sum(v > 2 for v in x[1::2]), sum(v > 3 for v in x[::2])
        for lane in range(32):
            team = [other for other in range(32) if x[other] & 3 == x[lane] & 3]
            ballot = sum(1 << other for other in team if x[other] > 4)
            value = ballot ^ (all(x[other] > 1 for other in team) << 7)
            assert found[lane] == (value + (odd if lane & 1 else 100 * even)) % 2**32


@pytest.mark.parametrize("block", [64, 40])
def test_special_registers(block: int) -> None:
    o = np.zeros((8, 2, block), np.uint32)
    assert sim("special", 2, block, o).ok
    for thread in range(block):
        lane, bit = thread % 32, 1 << thread % 32
        expected = [lane, bit - 1, 2**32 - bit, thread // 32, 2, bit, 2 * bit - 1, 2**32 - 2 * bit]
        assert [int(v) for v in o[:, 1, thread]] == expected


@pytest.mark.parametrize("block", [(4, 4, 4), (8, 4, 1), (32, 1, 2), (5, 3, 2), (1, 7, 1)])
def test_coordinates(block: tuple[int, int, int]) -> None:
    grid = (3, 2, 2)
    threads, blocks = int(np.prod(block)), 12
    o = np.zeros((blocks, threads, 6), np.int32)
    assert sim("coordinates", grid, block, o).ok
    for b in range(blocks):
        for t in range(threads):
            thread = [t % block[0], t // block[0] % block[1], t // (block[0] * block[1])]
            assert o[b, t].tolist() == [*thread, b % 3, b // 3 % 2, b // 6]
