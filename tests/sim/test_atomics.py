"""Atomic operations give what running the threads one after the other gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.sim import Out, run
from labkit.sim.atomics import apply, rounds

SOURCE = (Path(__file__).parent / "cuda" / "atomics.cu").read_text()
TYPES: dict[str, Any] = {"s32": np.int32, "u32": np.uint32, "u64": np.uint64}
OPERATIONS: list[Any] = [
    lambda w, x, y: w + x,
    lambda w, x, y: min(w, x),
    lambda w, x, y: max(w, x),
    lambda w, x, y: w & x,
    lambda w, x, y: w | x,
    lambda w, x, y: w ^ x,
    lambda w, x, y: x,
    lambda w, x, y: y if w == x else w,
]


def sim(name: str, grid: int, block: int, *args: Any) -> Any:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args))


def draw(rng: np.random.Generator, kind: Any, n: int, narrow: bool) -> Any:
    info = np.iinfo(kind)
    return rng.integers(0, 3, n).astype(kind) if narrow else rng.integers(info.min, info.max, n, kind, endpoint=True)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("operation", range(8))
def test_against_one_after_the_other(seed: int, kind: str, operation: int) -> None:
    rng, n, dtype = np.random.default_rng(seed), 150, TYPES[kind]
    narrow = operation == 7  # else comparisons would never hit
    w, x, y = (draw(rng, dtype, size, narrow) for size in (9, n, n))
    at = rng.integers(0, 9, n).astype(np.int32)
    words, old, expected_old = [int(v) for v in w], np.zeros(n, dtype), []
    for i in range(n):
        before = words[at[i]]
        expected_old.append(before)
        words[at[i]] = int(np.array(OPERATIONS[operation](before, int(x[i]), int(y[i]))).astype(object) % 2**64)
        words[at[i]] = int(np.array([words[at[i]] % 2**64], np.uint64).astype(dtype)[0])
    plain = w.copy()
    assert sim(f"{kind}_old", 3, 50, w, at, x, y, old, operation, n).ok
    assert w.tolist() == words and old.tolist() == expected_old
    if operation < 6:
        assert sim(f"{kind}_red", 3, 50, plain, at, x, operation, n).ok
        assert plain.tolist() == words


def test_wrapping_counters(seed: int) -> None:
    """atomicDec and atomicInc are different instructions: one of them runs first, for all threads that want it."""
    rng = np.random.default_rng(seed)
    start, x = rng.integers(0, 6, 4).astype(np.uint32), rng.integers(0, 6, 64).astype(np.uint32)
    at, old, w = rng.integers(0, 4, 64).astype(np.int32), np.zeros(64, np.uint32), start.copy()
    assert sim("wrap", 1, 64, w, at, x, old, 64).ok
    outcomes = []
    for order in ([*range(0, 64, 2), *range(1, 64, 2)], [*range(1, 64, 2), *range(0, 64, 2)]):
        words, seen = start.tolist(), [0] * 64
        for i in order:
            before, limit = words[at[i]], int(x[i])
            seen[i] = before
            up = 0 if before >= limit else before + 1
            down = limit if before == 0 or before > limit else before - 1
            words[at[i]] = up if i & 1 else down
        outcomes.append((words, seen))
    assert (w.tolist(), old.tolist()) in outcomes


def test_floating_point_adds_in_thread_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, at = rng.standard_normal(100).astype(np.float32), rng.integers(0, 8, 100).astype(np.int32)
    w, d, h = np.zeros(16, np.float32), np.zeros(8), np.zeros((8, 2), np.float16)
    old = np.zeros(100, np.float32)
    assert sim("floats", 1, 100, w, d, h, at, x, old, 100).ok
    expected_w, expected_d, expected_h = np.zeros(8, np.float32), np.zeros(8), np.zeros((8, 2), np.float16)
    for i in range(100):
        assert old[i] == expected_w[at[i]]
        expected_w[at[i]] += x[i]
        expected_d[at[i]] += float(x[i])
        expected_h[at[i]] += np.array([x[i], 2 * x[i]]).astype(np.float16)
    assert (w[:8] == expected_w).all() and (w[8:] == expected_w).all()
    assert (d == expected_d).all() and (h == expected_h).all()


@pytest.mark.parametrize("block", [64, 40])
def test_shared_histogram(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(0, 256, 1000, dtype=np.uint8)
    o = np.zeros(16, np.int32)
    assert sim("histogram", 3, block, a, o, 1000).ok
    assert (o == np.bincount(a & 15, minlength=16)).all()


def test_warp_aggregated_atomics(seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 5, 90).astype(np.int32)
    counts, slot = np.zeros(5, np.int32), np.zeros(90, np.int32)
    assert sim("aggregated", 1, 96, keys, counts, slot, 90).ok
    assert (counts == np.bincount(keys, minlength=5)).all()
    for key in range(5):
        assert sorted(slot[keys == key].tolist()) == list(range(counts[key]))


def test_compare_and_swap_loops(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    o = np.full(1, -9, np.float32)
    assert sim("float_max", 3, 100, o, x, 300).ok
    assert o[0] == x.max()


def test_faults() -> None:
    uninitialized = sim("uninit", 1, 32, np.zeros(32, np.int32))
    assert [finding.kind for finding in uninitialized.findings] == ["uninitialized"]
    o = np.zeros(32, np.int32)
    far = sim("far", 1, 32, o, 4)
    assert [(finding.kind, finding.count) for finding in far.findings] == [("out-of-bounds", 4)]
    assert o.tolist() == [0] * 4 + [1] * 28


def test_rounds_keep_the_order_of_threads(seed: int) -> None:
    index = np.random.default_rng(seed).integers(0, 6, 40)
    dealt = rounds(index)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(40))
    assert all(len(set(index[chosen])) == len(chosen) for chosen in dealt)
    for address in range(6):
        turns = [position for chosen in dealt for position in chosen if index[position] == address]
        assert turns == sorted(turns)


def test_unwanted_results_are_not_made() -> None:
    words = np.zeros(2, np.uint32)
    assert apply(words, np.array([1, 1]), "add", "u32", [np.array([3, 4], np.uint32)], False) == (None, True)
    assert words.tolist() == [0, 7]


def test_compare_and_swap_in_vain_changes_nothing() -> None:
    words, other = np.array([5, 6], np.uint32), np.array([1, 1], np.uint32)
    old, changed = apply(words, np.array([0, 1]), "cas", "b32", [other, other], True)
    assert old is not None and old.tolist() == words.tolist() == [5, 6] and not changed


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("kind", ["unsigned", "unsigned long long"])
def test_shared_memory_that_counts_as_written(checks: bool, kind: str) -> None:
    """Once all of it has been written, or where nobody checks, there is no record of what has been."""
    source = f"""extern "C" __global__ void k({kind}* o) {{
      __shared__ {kind} s[32];
      for (int i = threadIdx.x; i < sizeof(s) / 4; i += blockDim.x) ((int*)s)[i] = 0;
      __syncthreads();
      for (int turn = 0; turn < 3; turn++) {{
        atomicAdd(&s[threadIdx.x & 31], ({kind})1);
        __syncthreads();
      }}
      if (threadIdx.x < 32) o[blockIdx.x * 32 + threadIdx.x] = atomicExch(&s[threadIdx.x], ({kind})0);
    }}"""
    o = np.zeros(96, np.uint32 if kind == "unsigned" else np.uint64)
    assert run(source, grid=3, block=64, args=[Out(o)], checks=checks).ok and (o == 6).all()


def test_swaps_that_all_fail_change_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    words, index = rng.integers(5, 9, 4).astype(np.uint32), rng.integers(0, 4, 64)
    before, compare = words.copy(), np.zeros(64, np.uint32)
    old, changed = apply(words, index, "cas", "b32", [compare, compare + 1], True)
    assert not changed and old is not None and (old == before[index]).all() and (words == before).all()
