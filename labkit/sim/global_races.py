"""Races in global memory: judged at the end of a launch, buffer by buffer.

Most buffers are only read, and of the others most words belong to one thread, so nearly everything falls through
the first filter of ``conflicts``. What is left is ordered by block barriers, or has to be followed through fences and
flags.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from labkit.sim.accesses import Access, Integers, Team
from labkit.sim.conflicts import racing_pairs
from labkit.sim.fences import Record
from labkit.sim.findings import Findings
from labkit.sim.race_report import granule_shift, report_pairs


@dataclass
class _BufferLog:
    buffer: object  # kept, so that its id stays its own
    accesses: list[Access] = field(default_factory=list)
    size: int = 0


class RaceGroup:
    """What launches that run at the same time have in common: the clock, the record of fences, global memory."""

    LIMIT = 4_000_000  # addresses of one buffer that are kept; of more the oldest are forgotten

    def __init__(self) -> None:
        self.record = Record()
        self._time = 0
        self._teams: list[Team] = []
        self._running = 0
        self._logs: dict[int, _BufferLog] = {}
        self._spins: dict[tuple[Team, int, int, int], tuple[int, Access]] = {}
        self._activity = 0

    def add_team(self, findings: Findings, blocks: int, block_threads: int, device: int) -> Team:
        """Registers a launch."""
        last = self._teams[-1] if self._teams else None
        first_thread = last.first_thread + last.size if last else 0
        first_block = last.first_block + last.blocks if last else 0
        team = Team(findings, blocks, block_threads, device, first_thread, first_block)
        self._teams.append(team)
        self._running += 1
        return team

    def tick(self) -> int:
        """The next moment."""
        self._time += 1
        return self._time

    def add(self, buffer: object, access: Access) -> None:
        """Remembers an access to global memory."""
        if access.strong:
            if self._spins_on(access):
                return
            self.record.add(access)
        else:
            self._activity += 1
        log = self._logs.get(id(buffer))
        if log is None:
            log = self._logs[id(buffer)] = _BufferLog(buffer)
        log.accesses.append(access)
        log.size += access.address.size
        if log.size > self.LIMIT:
            _check(log.accesses, self.record)
            log.accesses = log.accesses[len(log.accesses) // 2 :]
            log.size = sum(each.address.size for each in log.accesses)

    def finish(self, team: Team) -> None:
        """A launch is over; after the last one global memory is checked."""
        self._running -= 1
        if self._running == 0:
            for log in self._logs.values():
                _check(log.accesses, self.record)

    def _spins_on(self, access: Access) -> bool:
        """Threads that wait for a flag read it again and again: until somebody writes, one reading stands for all."""
        if access.kind != "load":
            self._activity += 1
            return False
        first = 0 if access.flat is None else int(access.flat.flat[0])
        key = (access.team, access.site, first, access.lanes)
        activity, before = self._spins.get(key, (-1, access))
        self._spins[key] = (self._activity, access)
        return activity == self._activity and _same_threads(before, access)


def _same_threads(one: Access, other: Access) -> bool:
    return np.array_equal(one.address, other.address) and (
        one.flat is other.flat
        or (one.flat is not None and other.flat is not None and np.array_equal(one.flat, other.flat))
    )


def _check(accesses: list[Access], record: Record) -> None:
    _check_conflicts(accesses, accesses, record)
    # Volatile accesses do not race, but where they carry data and another word is the flag, a fence must part the two.
    volatile = [access for access in accesses if access.volatile and access.kind != "atomic"]
    if any(access.writes for access in volatile):
        plain = [replace(access, volatile=False) for access in volatile]
        _check_conflicts(volatile, plain, record, only="missing-fence")
    # Atomics of the scope of a block are none for other blocks: beside those, they are stores of who knows what.
    atomics = [access for access in accesses if access.kind == "atomic"]
    if any(access.narrow for access in atomics):
        stores = [replace(access, kind="store", values=None) if access.narrow else access for access in atomics]
        _check_conflicts(stores, stores, record, only="between blocks")


def _check_conflicts(accesses: list[Access], compared: list[Access], record: Record, only: str = "") -> None:
    """compared: the same accesses, some perhaps as if they were plain ones; only: see report_pairs."""
    writes = [access for access in compared if access.writes]
    if not writes:
        return
    shift = granule_shift(compared)
    base = min(int(access.address.min()) for access in writes)
    end = max(int(access.address.max()) + access.nbytes for access in writes)
    size = (end - base >> shift) + 1

    def words(access: Access) -> Integers:
        word = ((access.addresses() - base) >> shift)[:, None] + np.arange(max(1, access.nbytes >> shift))
        return np.where((word >= 0) & (word < size), word, -1)

    pairs = racing_pairs(compared, words, size, one_block=False)
    if pairs is not None:
        report_pairs(accesses, pairs, 1 << shift, record, only)
