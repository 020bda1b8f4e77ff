"""The race check on hand-made accesses: what it must see, and what it must let pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.lanes import Lanes, kernel_of

from labkit.sim.findings import Finding, Findings
from labkit.sim.global_races import RaceGroup
from labkit.sim.races import Races

THREADS = 64


def address(*values: Any) -> Any:
    return np.array([values[0] if len(values) == 1 and not np.isscalar(values[0]) else values], np.uint64)


def races_of(blocks: int = 1, threads: int = THREADS, **more: Any) -> tuple[Races, Lanes, Findings]:
    shape = ((blocks, 1, 1), (threads, 1, 1))
    findings = Findings(kernel_of("store.shared", "load.shared", "store.shared", "atomic.shared"), *shape)
    return Races(findings, *shape, **more), Lanes(blocks, threads), findings


def ended(races: Races, findings: Findings) -> list[Finding]:
    races.finish()
    return findings.as_list()


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_a_barrier_between_store_and_load_decides(blocks: int, width: int) -> None:
    own = address(np.arange(THREADS) * width)
    for with_barrier in (True, False):
        races, everyone, findings = races_of(blocks)
        races.shared_access(everyone, "store", own, width, 0)
        if with_barrier:
            races.barrier()
        races.shared_access(everyone, "load", own[:, ::-1], width, 1)
        found = ended(races, findings)
        assert [(f.kind, f.line, f.count) for f in found] == ([] if with_barrier else [("shared-race", 2, THREADS)])
    assert found[0].other and found[0].other.line == 1 and found[0].thread != found[0].other.thread


def test_overwriting_what_others_still_read_is_a_race() -> None:
    races, everyone, findings = races_of()
    own = address(np.arange(THREADS) * 4)
    races.shared_access(everyone, "store", own, 4, 0)
    races.barrier()
    races.shared_access(everyone, "load", own[:, ::-1], 4, 1)
    races.shared_access(everyone, "store", own, 4, 2)
    races.barrier()
    [found] = ended(races, findings)
    assert (found.kind, found.line, found.other and found.other.line) == ("shared-race", 3, 2)


def test_a_race_is_found_again_in_the_next_launch() -> None:
    for _ in range(2):
        races, everyone, findings = races_of()
        races.shared_access(everyone, "store", address(0), 4, 0, values=[np.arange(THREADS, dtype=np.uint32)[None]])
        assert [f.kind for f in ended(races, findings)] == ["shared-race"]


def test_lanes_that_store_one_value_to_a_word_do_no_harm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.full((1, THREADS), rng.integers(1 << 32), np.uint32)
    for equal in (True, False):
        races, everyone, findings = races_of()
        stored = values.copy()
        if not equal:
            stored[0, rng.integers(1, THREADS)] += np.uint32(1)
        races.shared_access(everyone, "store", address(8), 4, 0, values=[stored])
        assert len(ended(races, findings)) == (0 if equal else 1)


def test_neighbouring_halves_of_a_word_are_different_words() -> None:
    races, everyone, findings = races_of()
    races.shared_access(everyone, "store", address(np.arange(THREADS) * 2), 2, 0)
    assert ended(races, findings) == []


def test_wide_accesses_meet_narrow_ones() -> None:
    races, everyone, findings = races_of()
    races.shared_access(everyone, "store", address(np.arange(THREADS) * 16), 16, 0)
    races.shared_access(Lanes(1, THREADS, [0]), "load", address(16 * 40 + 12), 4, 1)
    [found] = ended(races, findings)
    assert (found.thread, found.other and found.other.thread) == (0, 40)


@pytest.mark.parametrize("volatile", [False, True])
def test_lanes_of_a_warp_need_syncwarp(volatile: bool) -> None:
    lanes = np.arange(32)
    for synchronised in (True, False):
        races, everyone, findings = races_of(threads=32)
        for distance in (16, 8, 4, 2, 1):
            few = Lanes(1, 32, lanes[:distance])
            races.shared_access(few, "load", address((lanes[:distance] + distance) * 4), 4, 1, volatile=volatile)
            races.shared_access(few, "store", address(lanes[:distance] * 4), 4, 2, volatile=volatile)
            if synchronised:
                races.sync_warp(everyone, np.full((1, 1), 0xFFFFFFFF, np.uint32))
        found = ended(races, findings)
        assert {f.kind for f in found} == (set() if synchronised else {"shared-race"})
    assert "__syncwarp()" in found[0].text


def test_syncwarp_of_half_a_warp_orders_that_half_only() -> None:
    half = np.arange(16)
    for reader, kinds in ((3, []), (20, ["shared-race"])):
        races, _, findings = races_of(threads=32)
        few = Lanes(1, 32, half)
        races.shared_access(few, "store", address(half * 4), 4, 0)
        races.sync_warp(few, np.full((1, 1), 0xFFFF, np.uint32))
        races.shared_access(Lanes(1, 32, [reader]), "load", address(8), 4, 1)
        assert [f.kind for f in ended(races, findings)] == kinds


def test_a_named_barrier_orders_the_warps_that_meet_there() -> None:
    for reader, kinds in ((40, []), (70, ["shared-race"])):
        races, _, findings = races_of(threads=96)
        races.shared_access(Lanes(1, 96, np.arange(32)), "store", address(np.arange(32) * 4), 4, 0)
        races.barrier(arrived=np.arange(64), waited=np.arange(32, 64))
        races.shared_access(Lanes(1, 96, [reader]), "load", address(8), 4, 1)
        assert [f.kind for f in ended(races, findings)] == kinds


def test_atomics_do_not_race_among_themselves_but_with_plain_accesses() -> None:
    races, everyone, findings = races_of()
    hot = address(np.arange(THREADS) % 3 * 4)
    races.shared_access(everyone, "atomic", hot, 4, 3)
    races.shared_access(everyone, "atomic", hot, 4, 3)
    races.barrier()
    races.shared_access(everyone, "load", hot, 4, 1)
    assert ended(races, findings) == []
    races, everyone, findings = races_of()
    races.shared_access(everyone, "atomic", hot, 4, 3)
    races.shared_access(everyone, "load", hot, 4, 1)
    assert {f.line for f in ended(races, findings)} == {2}


@pytest.mark.parametrize("atomic", ["atom.shared.cas.b32", "atom.shared.add.u32"])
def test_a_guess_before_a_compare_and_swap_does_not_race(atomic: str) -> None:
    shape = ((1, 1, 1), (THREADS, 1, 1))
    findings = Findings(kernel_of("load.shared", atomic), *shape)
    races, everyone = Races(findings, *shape), Lanes(1, THREADS)
    hot = address(np.arange(THREADS) % 3 * 4)
    races.shared_access(everyone, "load", hot, 4, 0)
    races.shared_access(everyone, "atomic", hot, 4, 1)
    assert [f.kind for f in ended(races, findings)] == ([] if "cas" in atomic else ["shared-race"])


def test_blocks_have_shared_memory_of_their_own_and_barriers_of_their_own() -> None:
    races, _, findings = races_of(blocks=2)
    first, second = (Lanes(2, THREADS, np.arange(THREADS) + block * THREADS) for block in (0, 1))
    own = address(np.arange(THREADS) * 4)
    races.shared_access(first, "store", own, 4, 0)
    races.shared_access(second, "store", own, 4, 0)
    races.barrier(np.array([1]))
    races.shared_access(second, "load", own[:, ::-1], 4, 1)
    races.shared_access(first, "load", own[:, ::-1], 4, 1)
    [found] = ended(races, findings)
    assert (found.block, found.count) == (0, THREADS)


def test_global_memory_is_checked_within_a_block_and_between_blocks() -> None:
    buffer, own = object(), (np.arange(2)[:, None] * THREADS + np.arange(THREADS)[None]).astype(np.uint64) * 4 + 4096
    for other_side, barrier, kinds in (
        (own[:, ::-1], True, []),
        (own[:, ::-1], False, ["global-race"]),
        (own[::-1], True, ["global-race"]),
    ):
        races, everyone, findings = races_of(blocks=2)
        races.global_access(everyone, buffer, "store", own, 4, 0)
        if barrier:
            races.barrier()
        races.global_access(everyone, buffer, "load", other_side, 4, 1)
        assert [f.kind for f in ended(races, findings)] == kinds


def test_conflicting_writes_of_two_blocks() -> None:
    for values, kinds in (([7, 7], []), ([7, 8], ["global-race"])):
        races, everyone, findings = races_of(blocks=2)
        stored = np.array(values, np.uint32)[:, None]
        races.global_access(everyone, object(), "store", np.full((1, 1), 4096, np.uint64), 4, 0, values=[stored])
        assert [f.kind for f in ended(races, findings)] == kinds


def test_two_devices_see_each_other_in_global_memory_only() -> None:
    group = RaceGroup()
    sides = [races_of(device=device, group=group) for device in (0, 1)]
    buffer, words = object(), np.arange(THREADS, dtype=np.uint64)[None] * 4 + 4096
    for site, (races, everyone, _) in enumerate(sides):
        races.shared_access(everyone, "store", address(np.arange(THREADS) * 4), 4, 0)
        races.global_access(everyone, buffer, ("store", "load")[site], words, 4, site)
    for races, _, _ in sides:
        races.finish()
    assert len(sides[0][2]) == 0
    [found] = sides[1][2].as_list()
    assert (found.kind, found.line) == ("global-race", 2)


def test_long_intervals_and_large_buffers_are_checked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Races, "OPEN_LIMIT", 10 * THREADS)
    monkeypatch.setattr(RaceGroup, "LIMIT", 10 * THREADS)
    for racy in (False, True):
        races, everyone, findings = races_of()
        for step in range(50):
            words = address((step * THREADS + np.arange(THREADS)) * 4)
            races.shared_access(everyone, "store", words, 4, 0)
            races.global_access(everyone, "buffer", "store", words + np.uint64(4096), 4, 0)
            if racy and step == 30:
                races.shared_access(everyone, "load", words[:, ::-1], 4, 1)
                races.global_access(everyone, "buffer", "load", words[:, ::-1] + np.uint64(4096), 4, 1)
        assert {f.kind for f in ended(races, findings)} == ({"shared-race", "global-race"} if racy else set())
