"""Memory accesses as the race checks remember them: arrays kept as they came, expanded only where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.sim.coalescing import LANES, Array, Integers
from labkit.sim.findings import Findings, Line, line_of
from labkit.sim.polling import polling_lines
from labkit.sim.program import Site

SHARED_STRIDE = 1 << 24  # more bytes than a block has of shared memory
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Team:
    """The threads of one launch. Several launches that run together number their threads and blocks one after another.

    threads of the team have the numbers first_thread ... first_thread + blocks * block_threads - 1.
    """

    findings: Findings
    blocks: int
    block_threads: int  # rounded up to whole warps
    device: int
    first_thread: int
    first_block: int

    @property
    def size(self) -> int:
        """Threads, those that only fill up a block's last warp included."""
        return self.blocks * self.block_threads

    @cached_property
    def polling_lines(self) -> frozenset[Line]:
        """Where the kernel looks at flags."""
        return polling_lines(self.findings.kernel)


@dataclass(frozen=True, eq=False)
class Access:
    """One load, store or atomic instruction executed by some threads of a team."""

    team: Team
    time: int
    kind: str  # "load", "store", "atomic"
    volatile: bool
    site: int
    nbytes: int  # of one thread
    shared: bool  # in shared memory, else global
    address: Array  # a register array; bytes from the start of a block's shared memory, or a global address
    flat: Array | None  # numbers of the threads within the team; None: all of them
    epochs: Integers  # block barriers that each block of the team had passed
    warps: Integers  # warp barriers that each warp of the team had passed
    values: Sequence[Array] | None  # what was stored: raw unsigned arrays; None where nobody asked

    @property
    def _site(self) -> Site:
        return self.team.findings.kernel.sites[self.site]

    @property
    def writes(self) -> bool:
        """True for stores and atomics."""
        return self.kind != "load"

    @property
    def strong(self) -> bool:
        """Meant for other threads to see at once: two strong accesses do not race.

        Volatile ones in shared memory are not among them: lanes of a warp that rely on each other's volatile stores
        without __syncwarp are a fault of their own kind, common in code from before Volta. Those of the memory model
        (cuda::atomic) are.
        """
        return self.kind == "atomic" or (self.volatile and (not self.shared or self._of_memory_model))

    @property
    def _of_memory_model(self) -> bool:
        return any(word in self._site.text for word in (".relaxed", ".acquire", ".release"))

    @property
    def swaps(self) -> bool:
        """A compare-and-swap, which fails by itself if its word has changed since the thread looked."""
        return self.kind == "atomic" and ".cas" in self._site.text

    @property
    def narrow(self) -> bool:
        """An atomic that is one for the threads of its own block only (atomicAdd_block and its like)."""
        return self._site.kind.startswith("atomic") and ".cta" in self._site.text

    @property
    def polls(self) -> bool:
        """A volatile load of a flag."""
        return self.volatile and self.kind == "load" and line_of(self._site) in self.team.polling_lines

    @property
    def lanes(self) -> int:
        """Threads that take part."""
        return self.team.size if self.flat is None else self.flat.size

    def threads(self, one_block: bool = False) -> Integers:
        """Numbers of the threads within the team, shape (lanes,); of block 0 only where one_block."""
        if self.flat is not None:
            return self.flat.reshape(-1)
        return np.arange(self.team.block_threads if one_block else self.team.size)

    def addresses(self, one_block: bool = False) -> Integers:
        """Addresses of threads(one_block)."""
        return self._flatten(self.address, one_block).astype(np.int64, copy=False)

    @cached_property
    def places(self) -> Integers:
        """A number for the address of each thread; those in shared memory differ by block and are negative."""
        if self.shared:
            block = self.team.first_block + self.threads() // self.team.block_threads
            return -1 - (block * SHARED_STRIDE + self.addresses())
        return self.addresses()

    def _flatten(self, register: Array, one_block: bool) -> Array:
        if self.flat is not None:
            return np.broadcast_to(register, (1, self.flat.size))[0]
        if one_block:
            return np.broadcast_to(register[:1], (1, self.team.block_threads))[0]
        return np.broadcast_to(register, (self.team.blocks, self.team.block_threads)).reshape(-1)

    def value_bytes(self, lane: Integers, offset: Integers, size: int) -> Integers:
        """What some lanes stored in ``size`` bytes at an offset into their access, as integers; shape of lane."""
        assert self.values is not None  # callers ask only for accesses that carry values
        width = self.values[0].dtype.itemsize
        elements = np.stack([self._flatten(value, one_block=False)[lane] for value in self.values])
        picked = elements[offset // width, np.arange(len(lane))].astype(np.uint64)
        moved = picked >> (8 * (offset % width)).astype(np.uint64)
        return (moved & np.uint64((1 << 8 * min(size, width)) - 1)).view(np.int64)


@dataclass
class Rows:
    """Accesses to contested words, one row for each (thread, word); rows are in the order of time."""

    word: Integers
    thread: Integers  # numbered over all teams
    block: Integers  # numbered over all teams
    write: Flags
    strong: Flags
    time: Integers
    epoch: Integers  # of its block
    warp_epoch: Integers  # of its warp
    entry: Integers  # index into the list of accesses
    lane: Integers  # position among the access's threads
    part: Integers  # which of the access's words, counted in granules

    def take(self, index: Array) -> Rows:
        """Some rows."""
        return Rows(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.word)


def rows_of(access: Access, entry: int, word: Integers, keep: Flags, one_block: bool) -> Rows | None:
    """The rows of one access where ``keep`` is true. word, keep: shape (lanes, words of an access)."""
    lane, part = np.nonzero(keep)
    if not len(lane):
        return None
    thread = access.threads(one_block)[lane]
    block = thread // access.team.block_threads
    same: Any = np.full(len(lane), 0)
    return Rows(
        word=word[lane, part],
        thread=thread + access.team.first_thread,
        block=block + access.team.first_block,
        write=same == int(not access.writes),
        strong=same == int(not access.strong),
        time=same + access.time,
        epoch=access.epochs[block],
        warp_epoch=access.warps[thread // LANES],
        entry=same + entry,
        lane=lane,
        part=part,
    )


def joined(parts: list[Rows]) -> Rows:
    """Several tables of rows as one."""
    return Rows(*(np.concatenate([getattr(p, name) for p in parts]) for name in Rows.__dataclass_fields__))
