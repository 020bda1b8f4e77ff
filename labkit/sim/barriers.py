"""Barriers of thread blocks: bar.sync, bar.arrive and the reductions, counted per thread as Volta does.

When whole blocks arrive together, which is the rule, they pass without stopping. Otherwise threads are parked here, by
(block, barrier number), until as many have arrived as the barrier waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.geometry import WARP
from labkit.sim.groups import Group
from labkit.sim.program import EXIT, Barrier, Kernel

if TYPE_CHECKING:
    from labkit.sim.machine import Run

Array = npt.NDArray[Any]
NUMBERS = 16  # barriers of a block


@dataclass
class _Arrival:
    """Threads that have come to a barrier; ``position`` is where those who wait go on."""

    lanes: Array
    barrier: Barrier
    position: int
    votes: Array | None  # the predicate of each lane, for the reductions


@dataclass
class _Slot:
    """One barrier of one block that is waiting to be complete."""

    expected: int | None  # threads; None: all of the block that still run
    arrivals: list[_Arrival] = field(default_factory=list)

    @property
    def arrived(self) -> int:
        return sum(len(arrival.lanes) for arrival in self.arrivals)


class Barriers:
    """All barriers of one launch."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.slots: dict[tuple[int, int], _Slot] = {}

    def arrive(self, group: Group, barrier: Barrier, next_position: int) -> list[Group]:
        """A group has reached a barrier; returns the groups that can go on, perhaps with others released by it."""
        self._check_operands(group, barrier)
        if barrier.kind != "arrive" and not self.slots and self._is_whole(group, barrier):
            blocks = np.flatnonzero(np.bincount(group.threads.block_of[0], minlength=self.run.geometry.blocks))
            self.run.passed_by_blocks(blocks)
            self._reduce_together(group, barrier)
            group.position = next_position
            return [group]
        free = self._park(group, barrier, next_position)
        return free + self.release()

    def release(self) -> list[Group]:
        """Open every barrier for which enough threads have arrived."""
        complete = []
        for (block, number), slot in list(self.slots.items()):
            expected = int(self.run.alive_per_block[block]) if slot.expected is None else slot.expected
            if slot.arrived >= expected:
                complete.append((block, self.slots.pop((block, number))))
        if not complete:
            return []
        waiting: dict[int, list[Array]] = {}
        for block, slot in complete:
            self._check_arrived(slot)
            self._check_sites(block, slot)
            self._finish_reduction(slot)
            for arrival in slot.arrivals:
                if arrival.barrier.kind != "arrive":
                    waiting.setdefault(arrival.position, []).append(arrival.lanes)
        self._watch(complete)
        return [Group(self.run, np.sort(np.concatenate(lanes)), position) for position, lanes in waiting.items()]

    def waiting(self) -> list[tuple[Barrier, Array]]:
        """(barrier, lanes) of everything that waits, for the report of a deadlock."""
        arrivals = [arrival for slot in self.slots.values() for arrival in slot.arrivals]
        return [(each.barrier, each.lanes) for each in arrivals if each.barrier.kind != "arrive"]

    # Arriving

    def _is_whole(self, group: Group, barrier: Barrier) -> bool:
        """True if the group has all running threads of each of its blocks, and all threads are what it waits for."""
        if isinstance(barrier.number, str) and group.read(barrier.number).size > 1:
            return False
        if barrier.threads is not None:
            count = group.read(barrier.threads) if isinstance(barrier.threads, str) else np.array(barrier.threads)
            if count.size > 1 or int(count.flat[0]) != self.run.geometry.real_threads:
                return False
        if len(group.lanes) == self.run.alive_count == self.run.geometry.blocks * self.run.geometry.real_threads:
            return True
        here = np.bincount(group.threads.block_of[0], minlength=self.run.geometry.blocks)
        full = here == self.run.geometry.real_threads
        return bool(np.all(full | (here == 0)))

    def _park(self, group: Group, barrier: Barrier, next_position: int) -> list[Group]:
        """Enter every thread at its barrier; returns those that do not wait (bar.arrive)."""
        lanes, number = group.lanes, _spread(group, barrier.number)
        expected = None if barrier.threads is None else _spread(group, barrier.threads)
        votes = None
        if barrier.predicate is not None:
            votes = group.threads.spread(group.read(barrier.predicate)) ^ barrier.negated
        group.position = next_position
        group.settle()
        block = lanes // self.run.geometry.block_threads
        for key in sorted({(int(b), int(n)) for b, n in zip(block, number, strict=True)}):
            chosen = np.flatnonzero((block == key[0]) & (number == key[1]))
            count = None if expected is None else int(expected[chosen[0]])
            slot = self.slots.setdefault(key, _Slot(count))
            if slot.expected != count:
                self._report_counts(slot, count, barrier, lanes[chosen])
            slot.arrivals.append(
                _Arrival(lanes[chosen], barrier, next_position, None if votes is None else votes[chosen])
            )
        return [group] if barrier.kind == "arrive" else []

    # Reductions

    def _reduce_together(self, group: Group, barrier: Barrier) -> None:
        if barrier.predicate is None or barrier.result is None:
            return
        votes = group.threads.spread(group.read(barrier.predicate)) ^ barrier.negated
        block = group.threads.block_of[0]
        yes = np.bincount(block, weights=votes, minlength=self.run.geometry.blocks)
        all_ = np.bincount(block, minlength=self.run.geometry.blocks)
        group.write(barrier.result, combine(barrier.kind, yes, all_)[block][None])

    def _finish_reduction(self, slot: _Slot) -> None:
        votes = [arrival.votes for arrival in slot.arrivals if arrival.votes is not None]
        if not votes:
            return
        together = np.concatenate(votes)
        yes, all_ = np.array([np.count_nonzero(together)]), np.array([len(together)])
        for arrival in slot.arrivals:
            if arrival.barrier.result is not None:
                answer = combine(arrival.barrier.kind, yes, all_)[None]
                self.run.registers.write(arrival.barrier.result, arrival.lanes, answer)

    # Checks

    def _check_operands(self, group: Group, barrier: Barrier) -> None:
        """A block has 16 barriers, and they count whole warps."""
        if is_plain(barrier):
            return
        site, lanes = barrier.site.index, group.lanes
        number = _spread(group, barrier.number)
        wrong = (number < 0) | (number >= NUMBERS)
        if wrong.any():
            text = f"waits at barrier {number[wrong][0]}; a block has barriers 0 to {NUMBERS - 1}"
            self.run.report_flat("invalid-barrier", site, text, lanes[wrong])
        if barrier.threads is None:
            return
        count = _spread(group, barrier.threads)
        wrong = (count <= 0) | (count % WARP != 0)
        if wrong.any():
            text = f"comes to a barrier of {count[wrong][0]} threads; a barrier counts whole warps, multiples of {WARP}"
            self.run.report_flat("invalid-barrier", site, text, lanes[wrong])

    def _report_counts(self, slot: _Slot, count: int | None, barrier: Barrier, lanes: Array) -> None:
        """Threads at one barrier must agree on how many it waits for."""
        ours, theirs = ("all threads" if each is None else f"{each} threads" for each in (count, slot.expected))
        text = f"comes to a barrier for {ours} where others of its block came for {theirs}"
        self.run.report_flat("invalid-barrier", barrier.site.index, text, lanes)

    def _check_arrived(self, slot: _Slot) -> None:
        """More threads at once than a barrier counts pass in some order, each time without waiting for the rest."""
        if slot.expected is not None and slot.arrived > slot.expected:
            last = slot.arrivals[-1]
            text = f"is one of {slot.arrived} threads that come to a barrier of {slot.expected} at once"
            self.run.report_flat("invalid-barrier", last.barrier.site.index, text, last.lanes)

    def _check_sites(self, block: int, slot: _Slot) -> None:
        """All threads of a block should meet at one and the same barrier of the program; parts of it need not."""
        first = slot.arrivals[0]
        if slot.expected is not None:
            return
        for other in slot.arrivals[1:]:
            one_way = "arrive" in (other.barrier.kind, first.barrier.kind)
            if other.barrier.site is not first.barrier.site and not one_way:
                self.run.report_barrier(first.barrier.site.index, first.lanes, other.barrier.site.index, other.lanes)
        self._check_ended(block, first)

    def _check_ended(self, block: int, first: _Arrival) -> None:
        """Threads that ended early count as arrived; those that went around the barrier and on should not have."""
        size = self.run.geometry.block_threads
        ended = self.run.ended_after[block * size : block * size + self.run.geometry.real_threads]
        gone = np.flatnonzero(ended >= 0)
        if not len(gone):
            return
        behind = reachable(self.run.kernel, first.position)
        skipped = [thread for thread in gone if int(ended[thread]) in behind]
        if skipped:
            text = f"waits at a barrier that {len(skipped)} threads of its block went around, thread {skipped[0]} first"
            self.run.report_flat("barrier-divergence", first.barrier.site.index, text, first.lanes)

    def _watch(self, complete: list[tuple[int, _Slot]]) -> None:
        whole = [block for block, slot in complete if slot.expected in (None, self.run.geometry.real_threads)]
        if whole:
            self.run.passed_by_blocks(np.array(sorted(whole)))
        for _, slot in complete:
            if slot.expected not in (None, self.run.geometry.real_threads):
                arrived = np.concatenate([each.lanes for each in slot.arrivals])
                waited = [each.lanes for each in slot.arrivals if each.barrier.kind != "arrive"]
                self.run.passed_by_some(arrived, np.concatenate(waited) if waited else arrived[:0])


def is_plain(barrier: Barrier) -> bool:
    """For all threads of the block, under a number that is known to exist: __syncthreads and its kin."""
    return barrier.threads is None and isinstance(barrier.number, int) and 0 <= barrier.number < NUMBERS


def combine(kind: str, yes: Array, count: Array) -> Array:
    """The result of bar.red: popc (uint32), and, or (bool)."""
    if kind == "popc":
        return yes.astype(np.uint32)
    return yes == count if kind == "and" else yes > 0


def reachable(kernel: Kernel, start: int) -> set[int]:
    """Basic blocks that can run after ``start`` is entered, ``start`` included."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        index = todo.pop()
        if index != EXIT and index not in seen:
            seen.add(index)
            todo.extend(kernel.blocks[index].successors)
    return seen


def _spread(group: Group, operand: str | int) -> Array:
    value = group.read(operand) if isinstance(operand, str) else np.full((1, 1), operand)
    return group.threads.spread(value).astype(np.int64)
