"""Counters against hand arithmetic on textbook access patterns, and against brute force on random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.lanes import Lanes, kernel_of

from labkit.sim import run
from labkit.sim.counters import Counters

LANE = np.arange(32)
BASE = 1 << 20


def counted(pattern: Any, nbytes: int, kind: str = "load", space: str = "global") -> Any:
    """The traffic of one warp's request; pattern: bytes from a base that is a multiple of 256."""
    counters = Counters(kernel_of(f"{kind}.{space}"))
    hook = getattr(counters, f"{space}_access")
    hook(Lanes(1, 32), kind, np.asarray(pattern, np.uint64)[None] + np.uint64(BASE), nbytes, 0)
    return getattr(counters, f"{space}_{kind}")


@pytest.mark.parametrize(
    ("pattern", "nbytes", "sectors", "efficiency"),
    [
        pytest.param(LANE * 4, 4, 4, 1.0, id="coalesced"),
        pytest.param(LANE * 8, 4, 8, 0.5, id="stride 2"),
        pytest.param(LANE * 128, 4, 32, 1 / 8, id="stride 32"),
        pytest.param(LANE * 4 + 4, 4, 5, 0.8, id="misaligned by 4 bytes"),
        pytest.param(LANE * 16, 16, 16, 1.0, id="float4"),
        pytest.param(LANE * 0, 4, 1, 1 / 8, id="broadcast"),
        pytest.param(LANE * 12, 4, 12, 1 / 3, id="array of structs of 12 bytes, one member"),
        pytest.param(LANE * 4 + 4096, 4, 4, 1.0, id="struct of arrays, one member"),
        pytest.param(LANE[::-1] * 4, 4, 4, 1.0, id="backwards"),
        pytest.param(LANE * 2, 2, 2, 1.0, id="halfs"),
        pytest.param(LANE // 8 * 32, 4, 4, 1 / 8, id="one float of each sector"),
    ],
)
def test_sectors_of_a_request(pattern: Any, nbytes: int, sectors: int, efficiency: float) -> None:
    for kind in ("load", "store"):
        traffic = counted(pattern, nbytes, kind)
        assert (traffic.requests, traffic.sectors) == (1, sectors)
        assert traffic.efficiency == pytest.approx(efficiency)


@pytest.mark.parametrize(
    ("pattern", "nbytes", "cycles", "conflicts"),
    [
        pytest.param(LANE * 4, 4, 1, 0, id="one word a bank"),
        pytest.param(LANE * 8, 4, 2, 1, id="stride 2"),
        pytest.param(LANE * 128, 4, 32, 31, id="column of a 32 x 32 tile"),
        pytest.param(LANE * 132, 4, 1, 0, id="column of a 32 x 33 tile"),
        pytest.param(LANE * 0, 4, 1, 0, id="broadcast"),
        pytest.param(LANE % 4 * 4, 4, 1, 0, id="four words, each for eight lanes"),
        pytest.param(LANE * 2, 2, 1, 0, id="halfs: two lanes share a word"),
        pytest.param(LANE * 8, 8, 2, 0, id="float2"),
        pytest.param(LANE * 16, 16, 4, 0, id="float4"),
        pytest.param(LANE * 32, 16, 8, 4, id="float4, every second"),
        pytest.param(LANE * 12, 4, 1, 0, id="stride 3 meets every bank once"),
    ],
)
def test_bank_cycles_of_a_request(pattern: Any, nbytes: int, cycles: int, conflicts: int) -> None:
    for kind in ("load", "store"):
        traffic = counted(pattern, nbytes, kind, "shared")
        assert (traffic.requests, traffic.cycles, traffic.conflicts) == (1, cycles, conflicts)


def sectors_by_hand(rows: Any, nbytes: int) -> tuple[int, int]:
    sectors = sum(len({int(a) // 32 for a in row}) for row in rows)
    return sectors, sum(len({int(a) for a in row}) * nbytes for row in rows)


def cycles_by_hand(rows: Any, nbytes: int) -> int:
    total = 0
    for row in rows:
        for part in np.array_split(np.array(row), max(1, nbytes // 4)):
            words = {int(a) // 4 + k for a in part if a >= 0 for k in range(max(1, nbytes // 4))}
            total += max((sum(w % 32 == bank for w in words) for bank in range(32)), default=0)
    return total


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_random_gathers_of_whole_launches(nbytes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    addresses = rng.integers(0, 300, (3, 64)) * nbytes
    counters = Counters(kernel_of("load.global", "load.shared"))
    for form in (addresses, addresses[:1]):  # different in each block, and the same in all
        counters = Counters(counters.kernel)
        counters.global_access(Lanes(3, 64), "load", form.astype(np.uint64) + np.uint64(BASE), nbytes, 0)
        counters.shared_access(Lanes(3, 64), "load", form.astype(np.uint64), nbytes, 1)
        rows = np.broadcast_to(form, (3, 64)).reshape(-1, 32)
        assert (counters.global_load.sectors, counters.global_load.useful_bytes) == sectors_by_hand(rows, nbytes)
        assert counters.shared_load.cycles == cycles_by_hand(rows, nbytes)
        assert counters.dram_read_bytes == 32 * len({int(a) // 32 for a in rows.reshape(-1)})
        assert (counters.global_load.requests, counters.dram_write_bytes) == (6, 0)


@pytest.mark.parametrize("nbytes", [2, 4, 8, 16])
def test_random_selections_of_lanes(nbytes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    some = rng.choice(4 * 64, 41, replace=False)
    lanes = Lanes(4, 64, some)
    addresses = rng.integers(0, 200, (1, 41)) * nbytes
    counters = Counters(kernel_of("store.global", "store.shared"))
    counters.global_access(lanes, "store", addresses.astype(np.uint64) + np.uint64(BASE), nbytes, 0)
    counters.shared_access(lanes, "store", addresses.astype(np.uint64), nbytes, 1)
    rows = np.full((8, 32), -1)
    rows.reshape(-1)[lanes.flat[0]] = addresses[0]
    busy = [[a for a in row if a >= 0] for row in rows]
    assert (counters.global_store.sectors, counters.global_store.useful_bytes) == sectors_by_hand(busy, nbytes)
    assert counters.shared_store.cycles == cycles_by_hand(rows, nbytes)
    assert counters.shared_store.requests == sum(map(bool, busy))


def test_a_branch_divides_a_warp_only_if_its_lanes_disagree() -> None:
    counters = Counters(kernel_of("branch"))
    everyone = Lanes(2, 64)
    for condition in (
        np.array([[True]]),
        np.arange(64)[None] < 32,
        np.arange(64)[None] < 40,
        np.array([[True], [False]]),
    ):
        counters.branch(everyone, condition, 0)
    total = counters.total()
    assert (total.branches, total.divergent_branches) == (16, 2)  # lane 40 lies in the second warp of both blocks
    counters.branch(Lanes(2, 64, [3, 4, 40]), np.array([[True, False, True]]), 0)
    total = counters.total()
    assert (total.branches, total.divergent_branches) == (18, 3)


def test_one_address_a_block_is_not_taken_for_one_address_a_lane() -> None:
    counters = Counters(kernel_of("load.global"))
    lanes, blocks = np.arange(32, dtype=np.uint64)[None], np.arange(32, dtype=np.uint64)[:, None] * np.uint64(33)
    for threads, address in ((Lanes(1, 32), lanes), (Lanes(32, 32), blocks)):
        counters.global_access(threads, "load", address + np.uint64(BASE), 1, 0)
    assert (counters.global_load.requests, counters.global_load.sectors, counters.global_load.useful_bytes) == (
        33,
        33,
        64,
    )


def test_different_sectors_count_once_however_far_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counters = Counters(kernel_of("load.global", "store.global"))
    pieces = [int(p) << 30 for p in rng.choice(1 << 12, 5, replace=False)]
    touched: set[int] = set()
    for _ in range(20):
        where = np.uint64(pieces[rng.integers(5)]) + rng.integers(0, 5000, (1, 64)).astype(np.uint64) * np.uint64(4)
        counters.global_access(Lanes(1, 64), "load", where, 4, 0)
        touched |= {int(a) // 32 for a in where[0]}
    assert counters.dram_read_bytes == 32 * len(touched)


def test_lines_add_up_to_the_total(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counters = Counters(kernel_of("load.global", "load.global", "store.global"))
    for site in range(3):
        addresses = rng.integers(0, 999, (2, 64)).astype(np.uint64) * np.uint64(4)
        counters.global_access(Lanes(2, 64), "store" if site == 2 else "load", addresses, 4, site)
    lines = counters.by_line()
    assert [line for _, line in lines] == [1, 2, 3]
    assert sum(counts.global_load.sectors for counts in lines.values()) == counters.global_load.sectors
    document = counters.to_json()
    assert document["global_load"]["sectors"] == counters.global_load.sectors
    assert "global load sectors" in str(counters)


def test_constants_are_no_traffic_of_global_memory() -> None:
    """Neither by name nor through a pointer; the same bytes in a __device__ variable are."""
    source = """KIND float table[64] = {1, 2};
    extern "C" __global__ void k(float* y, int n) {
      const float* where = n ? table : y;
      y[threadIdx.x] = table[threadIdx.x & 1] + where[0];
    }"""
    constant = run(source, grid=2, block=64, args=[np.zeros(64, np.float32), 1], macros={"KIND": "__constant__"})
    device = run(source, grid=2, block=64, args=[np.zeros(64, np.float32), 1], macros={"KIND": "__device__"})
    assert constant.counters and device.counters
    assert constant.counters.total().constant_requests == 8 and device.counters.total().constant_requests == 0
    assert constant.counters.global_load.requests == constant.counters.dram_read_bytes == 0
    assert device.counters.global_load.requests == 8 and device.counters.dram_read_bytes == 32
    assert constant.counters.to_json()["constant_requests"] == 8 and "constant requests" in str(constant.counters)
