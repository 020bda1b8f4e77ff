"""Divergence: threads part, wait for each other, and meet again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.sim import Result, run
from labkit.sim.schedule import name_lanes

SOURCE = (Path(__file__).parent / "cuda" / "schedule.cu").read_text()


def sim(name: str, grid: int, block: int, *args: object, **options: object) -> Result:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args), **options)  # type: ignore[arg-type]


def test_lanes_in_words() -> None:
    assert [name_lanes(bits) for bits in (8, 0x8000000F, 0xFFFF0000)] == ["lane 3", "lanes 0-3, 31", "lanes 16-31"]


def as_int32(x: int) -> int:
    return (x + 2**31) % 2**32 - 2**31


def nested_reference(x: int) -> int:
    r = 0
    for k in range(x & 15):
        if (x ^ k) & 1:
            r = as_int32(r + k * x)
            if k > 7:
                break
        else:
            r ^= as_int32(x + k)
            if x >> 4 & 3 == 1:
                continue
            r = as_int32(r + 3)
    case = x & 7
    if case == 0:
        return as_int32(r + 1)
    if case in (1, 2):
        return as_int32((r * 3 if case == 1 else r) - 7)
    return ~r if case == 5 else r ^ 0x55


@pytest.mark.parametrize("block", [1, 31, 32, 48, 64, 100])
@pytest.mark.parametrize("order", [None, 1, 2])
def test_nested_control_flow(seed: int, block: int, order: int | None) -> None:
    n = 230
    a = np.random.default_rng(seed).integers(-(2**31), 2**31, n).astype(np.int32)
    o = np.zeros(n, np.int32)
    result = sim("nested", -(-n // block), block, a, o, n, shuffle_seed=order)
    assert result.ok, result
    assert o.tolist() == [nested_reference(int(x)) for x in a]


@pytest.mark.parametrize("block", [7, 32, 48, 96])
def test_warp_operations_in_ragged_blocks(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(-1000, 1000, 205).astype(np.int32)
    o = np.zeros(1, np.int32)
    result = sim("warp_sum", -(-205 // block), block, a, o, 205)
    assert result.ok, result
    assert o[0] == a.sum()


def test_syncwarp_at_two_places() -> None:
    o = np.zeros(32, np.int32)
    result = sim("half_warps", 1, 32, o)
    assert result.ok, result
    assert o.tolist() == [i + 216 for i in range(16)] + [i + 100 for i in range(16)]


@pytest.mark.parametrize("order", [None, 3])
def test_barriers_in_loops_of_unequal_length(seed: int, order: int | None) -> None:
    rng = np.random.default_rng(seed)
    a, rounds = rng.integers(0, 1000, 256).astype(np.int32), rng.integers(0, 9, 5).astype(np.int32)
    o = np.zeros((5, 64), np.int32)
    result = sim("block_sum_loop", 5, 64, a, o, rounds, shuffle_seed=order)
    assert result.ok, result
    for block in range(5):
        for i in range(64):
            r = 0
            for k in range(rounds[block]):
                r += int(a[(block * 64 + 63 - i + k) & 255])
                r = r ^ k if i < k else r
            assert o[block, i] == r


@pytest.mark.parametrize("name", ["spin_lock", "naive_lock"])
@pytest.mark.parametrize("order", [None, 5])
def test_locks_make_progress(name: str, order: int | None) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    result = sim(name, 3, 40, lock, total, shuffle_seed=order)
    assert result.ok, result
    assert total[0] == 120


def test_blocks_wait_for_later_blocks() -> None:
    flag, o = np.zeros(6, np.int32), np.zeros(6, np.int32)
    result = sim("relay", 6, 64, flag, o)
    assert result.ok, result
    assert o.tolist() == [21, 15, 10, 6, 3, 1]


@pytest.mark.parametrize("order", [None, 8])
def test_last_block_reduces(seed: int, order: int | None) -> None:
    a = np.random.default_rng(seed).integers(-1000, 1000, 3001).astype(np.int32)
    partial, ticket, o = np.zeros(6, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    result = sim("last_block", 6, 128, a, partial, ticket, o, 3001, shuffle_seed=order)
    assert result.ok, result
    assert o[0] == a.sum()


def test_named_barriers(seed: int) -> None:
    a = np.random.default_rng(seed).integers(0, 1000, (7, 32)).astype(np.int32)
    o = np.zeros((7, 32), np.int32)
    result = sim("producer", 1, 64, a, o, 7)
    assert result.ok, result
    assert (o == a[:, ::-1]).all()


@pytest.mark.parametrize("block", [32, 64, 40])
def test_barrier_reductions(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(-110, 110, (4, block)).astype(np.int32)
    o = np.zeros((4, block), np.int32)
    result = sim("votes", 4, block, a, o)
    assert result.ok, result
    expected = (a > 0).sum(1) * 4 + 2 * (a > 100).any(1) + (a > -100).all(1)
    assert (o == expected[:, None] + 1000 * (a & 1)).all()


def test_barrier_reductions_of_diverged_blocks(seed: int) -> None:
    a = np.random.default_rng(seed).integers(-3, 6, (4, 64)).astype(np.int32)
    o = np.zeros((4, 64), np.int32)
    result = sim("votes_apart", 4, 64, a, o)
    assert result.ok, result
    for block in range(4):
        r = sum(int((a[block] > k).sum()) for k in range(block + 1)) + 7
        assert o[block].tolist() == [r + 5 * (i < 7) for i in range(64)]


SPINS = {
    "a lock": "while (atomicCAS(x, 0, 1) != 0) {}",
    "a flag": "while (*(volatile int*)x != 5) {}",
    "two flags": "if (threadIdx.x < 7) while (*(volatile int*)x == 1) {} else while (((volatile int*)x)[1] == 0) {}",
    "a lock and a barrier": "if (threadIdx.x < 32) while (atomicCAS(x, 0, 1) != 0) {} __syncthreads();",
}


@pytest.mark.parametrize("spin", SPINS)
def test_waiting_for_what_nobody_can_change_is_found_soon(spin: str) -> None:
    x = np.array([1, 0], np.int32)
    result = run(f'extern "C" __global__ void k(int* x) {{ {SPINS[spin]} }}', grid=4, block=64, args=[x])
    assert not result.finished and "endless" in {found.kind for found in result.findings}
    assert result.instructions < 5000


PATIENT = {
    "a number of rounds": "int r = 0; while (*flag == 0 && r < 900) r++; o[threadIdx.x] = r;",
    "a time": "long long t = clock64(); while (*flag == 0 && clock64() - t < 9000) {} o[threadIdx.x] = 900;",
    "a slow thread": "if (threadIdx.x) while (*flag == 0) {} else { int v = 1; "
    "for (int i = 0; i < n; i++) v = v * 31 ^ i; *flag = v ? v : 1; } o[threadIdx.x] = 900;",
}


@pytest.mark.parametrize("wait", PATIENT)
def test_waiting_that_comes_to_an_end_is_left_alone(wait: str) -> None:
    o = np.zeros(64, np.int32)
    source = f'extern "C" __global__ void k(volatile int* flag, int* o, int n) {{ {PATIENT[wait]} }}'
    assert run(source, args=[np.zeros(1, np.int32), o, 30_000], checks=False).ok and (o == 900).all()
