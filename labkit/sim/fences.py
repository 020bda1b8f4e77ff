"""Who may rely on an access: barriers, fences and flags, followed from one thread to another.

What a thread has done becomes usable by others in two ways. Within a block, a barrier hands it on. Beyond the block, it
must first be fenced (__threadfence, or __threadfence_system for another device); then whoever reads a flag, with an
atomic or volatile access, that was so written afterwards may rely on it, and hands it on at its own barriers (PTX ISA,
"Memory Consistency Model": release and acquire patterns, causality order).

The machine only writes down what happens. A question is answered by running through the record from the access on and
keeping for every thread how far it may rely on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from labkit.sim.accesses import Access, Team
from labkit.sim.coalescing import LANES, Array, Integers

# How far a thread, or the flag that it wrote, hands an access on.
UNKNOWN, KNOWN, FENCED_BLOCK, FENCED_DEVICE, FENCED_SYSTEM = range(5)
SCOPES = {"cta": FENCED_BLOCK, "gpu": FENCED_DEVICE, "sys": FENCED_SYSTEM}

Levels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Barrier:
    """Threads wait for each other. arrived, waited: numbers within the team; those that wait learn from all."""

    time: int
    team: Team
    arrived: Integers
    waited: Integers


@dataclass(frozen=True, eq=False)
class BlockBarrier:
    """All threads of some blocks wait for each other, block by block."""

    time: int
    team: Team
    blocks: Integers  # numbers within the team


@dataclass(frozen=True, eq=False)
class WarpBarrier:
    """__syncwarp: lanes of one mask wait for each other, warp by warp."""

    time: int
    team: Team
    threads: Integers  # numbers within the team
    mask: Array  # of each thread, or one for all

    def groups(self) -> Integers:
        """For each thread the number of its group, which shares a warp and a mask."""
        keys = (self.threads // LANES << 32) | np.broadcast_to(self.mask.reshape(-1), self.threads.shape)
        _, groups = np.unique(keys, return_inverse=True)
        return groups.reshape(-1)


@dataclass(frozen=True, eq=False)
class Fence:
    """__threadfence and its kin."""

    time: int
    team: Team
    threads: Integers | None  # within the team; None: all
    level: int


Event = Barrier | BlockBarrier | WarpBarrier | Fence | Access


class Record:
    """What may order accesses, in the order of time. Of a long launch only the latest events are kept."""

    EVENTS = 100_000
    SIZE = 8_000_000  # thread numbers and addresses

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first_time = 0  # nothing is claimed about accesses before it, since events of that time are forgotten
        self._size = 0

    def add(self, event: Event) -> None:
        """Writes down what just happened."""
        self.events.append(event)
        self._size += _size(event)
        if len(self.events) > self.EVENTS or self._size > self.SIZE:
            self.events = self.events[len(self.events) // 2 :]
            self.first_time = self.events[0].time
            self._size = sum(map(_size, self.events))

    def hands_on(self) -> bool:
        """Whether anything but barriers of whole blocks and warps was recorded, or may have been."""
        return self.first_time > 0 or any(isinstance(event, Access | Barrier | WarpBarrier) for event in self.events)

    def between(self, start: int, end: int) -> list[Event]:
        """Events after the start and before the end."""
        first = bisect_right(self.events, start, key=_time)
        return self.events[first : bisect_left(self.events, end, key=_time)]


def _time(event: Event) -> int:
    return event.time


def _size(event: Event) -> int:
    if isinstance(event, Access):
        return event.address.size
    return event.threads.size if isinstance(event, WarpBarrier) else 1


@dataclass(frozen=True)
class Question:
    """May the later thread rely on what the earlier one did? Thread numbers count over all teams."""

    earlier: Access
    earlier_thread: int
    earlier_address: int  # a flag of its own: who reads it later, with a strong access, has seen the access
    later: Access
    later_thread: int


def ordered(question: Question, record: Record, *, writer_fences: bool = True, reader_fences: bool = True) -> bool:
    """Whether barriers, fences and flags lead from the earlier to the later access.

    writer_fences=False asks whether they would if every thread fenced all that it does; reader_fences=False, if every
    thread fenced after each flag that it reads.
    """
    if question.earlier.time < record.first_time:
        return True
    walk = _Walk(question, writer_fences, reader_fences)
    for event in record.between(question.earlier.time, question.later.time):
        if walk.arrived():
            return True
        walk.step(event)
    return walk.arrived()


class _Walk:
    """The state of one question: how far every thread and every flag hands the access on.

    A thread that has read a flag may rely on the access after a fence of its own (looked or counted -> levels). Without
    one, its plain loads may still come from its multiprocessor's L1 cache, older than the flag; volatile ones do not.

    A barrier is no fence: threads that wait for one that has looked at a flag know no more than it does. Only for flags
    read by an atomic is a barrier taken for one. The CUDA samples let the last block to count itself add up what the
    others left ("threadFenceReduction") with no fence after the count; it has not read those words before, so its cache
    cannot hold them. What is not seen here: a block that has, and one that spins on an atomic.
    """

    def __init__(self, question: Question, writer_fences: bool, reader_fences: bool) -> None:
        teams = (question.earlier.team, question.later.team)
        size = max(team.first_thread + team.size for team in teams)
        self.levels: Levels = np.zeros(size, np.uint8)
        self.looked: Levels = np.zeros(size, np.uint8)  # read a flag with a load
        self.counted: Levels = np.zeros(size, np.uint8)  # ... with an atomic
        # Whoever overwrites what a thread has read needs no fence from it: a load is done when its value is there.
        fence_free = not writer_fences or question.earlier.kind == "load"
        self.levels[question.earlier_thread] = FENCED_SYSTEM if fence_free else KNOWN
        self.target = question.later_thread
        self.direct = question.later.volatile or question.later.kind != "load" or not reader_fences
        self.reader_fences = reader_fences
        self.home = question.earlier.team
        self.home_block = (question.earlier_thread - self.home.first_thread) // self.home.block_threads
        self.flags: dict[int, int] = {}
        if question.earlier.strong:
            self.flags[question.earlier_address] = FENCED_SYSTEM
            self._see_at_once(question)

    def _see_at_once(self, question: Question) -> None:
        """Atomics of one instruction come one after the other: later threads have seen the earlier one's."""
        access, first = question.earlier, question.earlier.team.first_thread
        if access.kind == "atomic":
            threads = access.threads() + first
            after = (threads > question.earlier_thread) & (access.places == question.earlier_address)
            self.counted[threads[after]] = FENCED_SYSTEM

    def arrived(self) -> bool:
        """Whether the later thread may rely on the access."""
        seen = self.looked[self.target] or self.counted[self.target]
        return bool(self.levels[self.target] or (self.direct and seen))

    def step(self, event: Event) -> None:
        """Takes one event into account."""
        team = event.team
        if team.first_thread >= len(self.levels):
            return  # a third device's, which neither side has anything to do with
        whole = slice(team.first_thread, team.first_thread + team.size)
        mine, looked, counted = self.levels[whole], self.looked[whole], self.counted[whole]
        if isinstance(event, Access):
            self._flags(event, mine, counted if event.kind == "atomic" else looked)
        elif isinstance(event, Fence):
            chosen = slice(None) if event.threads is None else event.threads
            known = np.maximum(mine[chosen], np.maximum(looked[chosen], counted[chosen]))
            mine[chosen] = np.where(known > UNKNOWN, np.maximum(known, event.level), UNKNOWN)
        else:
            self._barrier(event, looked, looked)
            self._barrier(event, mine, np.maximum(mine, counted))

    def _barrier(self, event: Barrier | BlockBarrier | WarpBarrier, mine: Levels, brought: Levels) -> None:
        if isinstance(event, BlockBarrier):
            together = brought.reshape(event.team.blocks, -1)[event.blocks].max(axis=1, keepdims=True)
            mine.reshape(event.team.blocks, -1)[event.blocks] = together
        elif isinstance(event, WarpBarrier):
            groups = event.groups()
            best = np.zeros(len(groups), np.uint8)
            np.maximum.at(best, groups, brought[event.threads])
            mine[event.threads] = best[groups]
        else:
            mine[event.waited] = np.maximum(mine[event.waited], brought[event.arrived].max(initial=UNKNOWN))

    def _flags(self, event: Access, mine: Levels, seen: Levels) -> None:
        """Atomics and volatile accesses: reading a flag shows what its writer handed on, writing it hands on."""
        threads = event.threads()
        interesting = mine[threads] > KNOWN if event.writes else np.zeros(len(threads), bool)
        if not self.flags and not interesting.any():
            return
        places = event.places
        if event.kind != "store":  # an atomic also reads what threads before it have written in the same instruction
            known = np.array([*self.flags, *places[interesting]])
            interesting |= np.isin(places, known)
        for index in np.flatnonzero(interesting):
            thread, address = int(threads[index]), int(places[index])
            level = self.flags.get(address, UNKNOWN)
            if event.kind != "store" and level >= self._needed(event.team, thread):
                seen[thread] = max(seen[thread], level)
                if not self.reader_fences:
                    mine[thread] = max(mine[thread], level)
            if event.writes and mine[thread] > KNOWN:
                self.flags[address] = max(level, int(mine[thread]))

    def _needed(self, team: Team, thread: int) -> int:
        """The level at which a flag must hand on for this thread to rely on it."""
        if team is not self.home:
            return FENCED_SYSTEM if team.device != self.home.device else FENCED_DEVICE
        return FENCED_BLOCK if thread // team.block_threads == self.home_block else FENCED_DEVICE
