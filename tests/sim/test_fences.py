"""Data handed from one block or device to another: which fences and flags make that right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.lanes import Lanes, kernel_of

from labkit.sim.fences import Record
from labkit.sim.findings import Findings
from labkit.sim.global_races import RaceGroup
from labkit.sim.races import Races

THREADS = 64
DATA, FLAG = 4096, 1 << 20
STORE, FLAG_STORE, SPIN, LOAD = range(4)


@dataclass
class Handover:
    """Block 0 of the writer fills a word per thread and raises a flag; the reader's last block waits and reads."""

    same_device: bool = True
    blocks: int = 2
    fence: str | None = "gpu"
    fence_before_barrier: bool = True
    barrier_before_flag: bool = True
    barrier_after_spin: bool = True
    strong_flag: bool = True
    fence_after_spin: bool = True
    volatile_data: bool = False
    spins: int = 3

    def kinds(self) -> set[str]:
        group = RaceGroup()
        shape = ((self.blocks, 1, 1), (THREADS, 1, 1))
        kernel = kernel_of("store.global", "store.global", "load.global", "load.global")
        all_findings = [Findings(kernel, *shape) for _ in range(1 if self.same_device else 2)]
        sides = [Races(f, *shape, device=d, group=group) for d, f in enumerate(all_findings)]
        writer, reader = sides[0], sides[-1]
        self._write(writer)
        self._read(reader, self.blocks - 1)
        for side in sides:
            side.finish()
        return {found.kind for findings in all_findings for found in findings.as_list()}

    def _write(self, races: Races) -> None:
        block, first = self._block(0), self._block(0, 1)
        races.global_access(block, "data", "store", self._words(), 4, STORE)
        if self.fence and self.fence_before_barrier:
            races.fence(block, self.fence)
        if self.barrier_before_flag:
            races.barrier(np.array([0]))
        if self.fence and not self.fence_before_barrier:
            races.fence(first, self.fence)
        races.global_access(first, "flag", "store", one(FLAG), 4, FLAG_STORE, volatile=self.strong_flag)

    def _read(self, races: Races, number: int) -> None:
        first = self._block(number, 1)
        for _ in range(self.spins):
            races.global_access(first, "flag", "load", one(FLAG), 4, SPIN, volatile=True)
        if self.fence_after_spin:
            races.fence(first, "gpu")
        if self.barrier_after_spin:
            races.barrier(np.array([number]))
        words = self._words()[:, ::-1]
        races.global_access(self._block(number), "data", "load", words, 4, LOAD, volatile=self.volatile_data)

    def _block(self, number: int, threads: int = THREADS) -> Lanes:
        return Lanes(self.blocks, THREADS, number * THREADS + np.arange(threads))

    def _words(self) -> Any:
        return DATA + 4 * np.arange(THREADS, dtype=np.uint64)[None]


def one(value: int) -> Any:
    return np.full((1, 1), value, np.uint64)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_fence_flag_and_barriers_hand_data_to_another_block(before: bool, scope: str) -> None:
    assert Handover(fence=scope, fence_before_barrier=before).kinds() == set()


@pytest.mark.parametrize("same_device", [True, False])
def test_a_barrier_after_looking_at_the_flag_is_no_fence(same_device: bool) -> None:
    """The flag's reader and the threads that wait for it may still have the old data in their cache."""
    without = Handover(same_device=same_device, fence="sys", fence_after_spin=False)
    assert without.kinds() == {"missing-fence"}
    without.volatile_data = True
    assert without.kinds() == set()


def test_another_device_needs_a_fence_of_the_system() -> None:
    assert Handover(same_device=False, fence="sys").kinds() == set()
    assert Handover(same_device=False, fence="gpu").kinds() == {"missing-fence"}


@pytest.mark.parametrize("fence", [None, "cta"])
def test_without_a_fence_the_flag_may_overtake_the_data(fence: str | None) -> None:
    assert Handover(fence=fence).kinds() == {"missing-fence"}


def test_a_fence_by_one_thread_covers_its_block_only_after_a_barrier() -> None:
    assert Handover(fence_before_barrier=False, barrier_before_flag=False).kinds() == {"global-race"}


def test_the_flag_must_not_run_ahead_of_the_other_threads() -> None:
    assert Handover(barrier_before_flag=False).kinds() == {"global-race"}


def test_the_other_threads_of_the_reader_must_wait_too() -> None:
    assert Handover(barrier_after_spin=False).kinds() == {"global-race"}


def test_a_reader_that_looks_at_no_flag_races() -> None:
    assert Handover(spins=0).kinds() == {"global-race"}


def test_a_plain_store_is_no_flag() -> None:
    assert "global-race" in Handover(strong_flag=False).kinds()


def test_within_one_block_a_fence_of_the_block_suffices() -> None:
    assert Handover(blocks=1, fence="cta", barrier_before_flag=False, barrier_after_spin=False).kinds() == {
        "global-race"
    }
    assert Handover(blocks=1, fence=None).kinds() == set()  # the barriers do it all


@pytest.mark.parametrize(("data_volatile", "fence"), [(True, None), (False, "gpu"), (False, None)])
def test_a_thread_that_reads_flag_and_data_itself(data_volatile: bool, fence: str | None) -> None:
    """Its plain loads may be served from a cache that is older than the flag; volatile ones are not."""
    shape = ((2, 1, 1), (THREADS, 1, 1))
    findings = Findings(kernel_of("store.global", "store.global", "load.global", "load.global"), *shape)
    races = Races(findings, *shape)
    writer, reader = Lanes(2, THREADS, [0]), Lanes(2, THREADS, [THREADS])
    races.global_access(writer, "data", "store", one(DATA), 4, STORE, volatile=data_volatile)
    races.fence(writer, "gpu")
    races.global_access(writer, "flag", "store", one(FLAG), 4, FLAG_STORE, volatile=True)
    races.global_access(reader, "flag", "load", one(FLAG), 4, SPIN, volatile=True)
    if fence:
        races.fence(reader, fence)
    races.global_access(reader, "data", "load", one(DATA), 4, LOAD, volatile=data_volatile)
    races.finish()
    found = findings.as_list()
    assert [f.kind for f in found] == ([] if data_volatile or fence else ["missing-fence"])
    assert all("between reading the flag and this" in f.text for f in found)


@pytest.mark.parametrize("fenced", [True, False])
def test_volatile_data_needs_its_fence_too(fenced: bool) -> None:
    shape = ((2, 1, 1), (THREADS, 1, 1))
    findings = Findings(kernel_of("store.global", "store.global", "load.global", "load.global"), *shape)
    races = Races(findings, *shape)
    writer, reader = Lanes(2, THREADS, [0]), Lanes(2, THREADS, [THREADS])
    races.global_access(writer, "data", "store", one(DATA), 4, STORE, volatile=True)
    if fenced:
        races.fence(writer, "gpu")
    races.global_access(writer, "flag", "store", one(FLAG), 4, FLAG_STORE, volatile=True)
    for _ in range(3):
        races.global_access(reader, "flag", "load", one(FLAG), 4, SPIN, volatile=True)
    races.global_access(reader, "data", "load", one(DATA), 4, LOAD, volatile=True)
    races.finish()
    assert [f.kind for f in findings.as_list()] == ([] if fenced else ["missing-fence"])


@pytest.mark.parametrize("fenced", [True, False])
def test_the_last_block_adds_up_what_the_others_left(fenced: bool, seed: int) -> None:
    blocks = 6
    shape = ((blocks, 1, 1), (THREADS, 1, 1))
    findings = Findings(kernel_of("store.global", "atomic.global", "load.global", "store.global"), *shape)
    races = Races(findings, *shape)
    leaders = Lanes(blocks, THREADS, np.arange(blocks) * THREADS)
    races.global_access(leaders, "partial", "store", DATA + 4 * np.arange(blocks, dtype=np.uint64)[None], 4, 0)
    if fenced:
        races.fence(leaders, "gpu")
    order = np.random.default_rng(seed).permutation(blocks)
    for block in order:
        leader = Lanes(blocks, THREADS, [block * THREADS])
        races.global_access(leader, "count", "atomic", one(FLAG), 4, 1)
    races.barrier()
    last = Lanes(blocks, THREADS, order[-1] * THREADS + np.arange(blocks))
    races.global_access(last, "partial", "load", DATA + 4 * np.arange(blocks, dtype=np.uint64)[None], 4, 2)
    leader = Lanes(blocks, THREADS, [order[-1] * THREADS])
    races.global_access(leader, "count", "store", one(FLAG), 4, 3)  # reset for the next launch: all have counted
    races.finish()
    assert {f.kind for f in findings.as_list()} == (set() if fenced else {"missing-fence"})


@pytest.mark.parametrize("fenced", [True, False])
def test_a_lock_in_shared_memory_orders_what_it_guards(fenced: bool) -> None:
    shape = ((1, 1, 1), (THREADS, 1, 1))
    findings = Findings(kernel_of("atomic.shared", "load.shared", "store.shared", "atomic.shared"), *shape)
    races = Races(findings, *shape)
    for thread in (3, 40, 41):
        alone = Lanes(1, THREADS, [thread])
        races.shared_access(alone, "atomic", one(0), 4, 0)
        races.shared_access(alone, "load", one(64), 4, 1)
        races.shared_access(alone, "store", one(64), 4, 2)
        if fenced:
            races.fence(alone, "cta")
        races.shared_access(alone, "atomic", one(0), 4, 3)
    races.finish()
    assert {f.kind for f in findings.as_list()} == (set() if fenced else {"shared-race"})


@pytest.mark.parametrize("limit", ["EVENTS", "SIZE"])
def test_a_record_that_was_cut_short_claims_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, limit, 2)
    assert Handover().kinds() == set()
    assert Handover(fence=None).kinds() <= {"missing-fence", "global-race"}
