"""The race check: the machine's hooks, and shared memory, which is checked one barrier interval at a time.

Threads of a block may hand data to each other through shared memory only across a barrier. So what one interval between
two barriers did is enough to judge it: no word that one thread writes may be used by another, unless __syncwarp, a
barrier of some warps, or a flag comes in between. Kernels repeat their intervals, address for address, so the outcome
is remembered by content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from labkit.sim.accesses import Access, Integers, Rows, Team
from labkit.sim.coalescing import LANES, Array, Selection
from labkit.sim.conflicts import in_all_blocks, racing_pairs
from labkit.sim.fences import SCOPES, Barrier, BlockBarrier, Fence, WarpBarrier
from labkit.sim.findings import Findings
from labkit.sim.global_races import RaceGroup
from labkit.sim.race_report import granule_shift, report_pairs

FULL_MASK = np.uint32(0xFFFFFFFF)
Pairs = tuple[Rows, Rows]  # earlier and later accesses


class Races:
    """Watches the memory accesses of one launch.

    Args:
        findings: where races are reported.
        grid, block: the launch's shape.
        device: number of the simulated device.
        group: the same object for launches that run together; they may hand each other data.
    """

    OPEN_LIMIT = 4_000_000  # addresses of an interval that are kept; of a longer one the oldest are forgotten

    _outcomes: dict[bytes, Pairs | None] = {}  # noqa: RUF012 - shared by all launches on purpose: a pure cache
    _OUTCOMES_LIMIT = 4_000

    def __init__(
        self,
        findings: Findings,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        device: int = 0,
        group: RaceGroup | None = None,
    ) -> None:
        self.group = RaceGroup() if group is None else group
        blocks, threads = int(np.prod(grid)), -(-int(np.prod(block)) // LANES) * LANES
        self.team: Team = self.group.add_team(findings, blocks, threads, device)
        self._epochs: Integers = np.zeros(blocks, np.int64)
        self._warps: Integers = np.zeros(blocks * threads // LANES, np.int64)
        self._same_in_all_blocks = True  # every barrier of this interval
        self._log: list[Access] = []
        self._log_size = 0

    # Hooks of the machine

    def shared_access(
        self,
        threads: Selection,
        kind: str,
        address: Array,
        nbytes: int,
        site: int,
        values: Sequence[Array] | None = None,
        volatile: bool = False,
    ) -> None:
        """A load, store or atomic in shared memory; address: from the start of the block's own."""
        access = self._access(threads, kind, True, address, nbytes, site, values, volatile)
        if access.strong or volatile:
            self.group.record.add(access)
        self._log.append(access)
        self._log_size += address.size
        if self._log_size > self.OPEN_LIMIT:
            self._check_shared()
            self._log = self._log[len(self._log) // 2 :]
            self._log_size = sum(each.address.size for each in self._log)

    def global_access(
        self,
        threads: Selection,
        buffer: object,
        kind: str,
        address: Array,
        nbytes: int,
        site: int,
        values: Sequence[Array] | None = None,
        volatile: bool = False,
    ) -> None:
        """A load, store or atomic in global memory; buffer: the memory it lies in, one object for each piece."""
        self.group.add(buffer, self._access(threads, kind, False, address, nbytes, site, values, volatile))

    def barrier(
        self, blocks: Integers | None = None, arrived: Integers | None = None, waited: Integers | None = None
    ) -> None:
        """A barrier is passed: by all threads of some blocks, or by some threads of one block.

        blocks: flat numbers; None: all. arrived: flat thread numbers of a barrier of part of a block; waited: those of
        them that wait (bar.arrive does not); all by default.
        """
        time = self.group.tick()
        if arrived is not None:
            self.group.record.add(Barrier(time, self.team, arrived, arrived if waited is None else waited))
            return
        chosen = np.arange(self.team.blocks) if blocks is None else blocks
        self.group.record.add(BlockBarrier(time, self.team, chosen))
        self._epochs = self._epochs.copy()
        self._epochs[chosen] += 1
        self._same_in_all_blocks &= blocks is None
        if blocks is None or (self._epochs == self._epochs[0]).all():
            self._close_interval()

    def sync_warp(self, threads: Selection, mask: Array) -> None:
        """__syncwarp by the lanes of a mask, all of them present; mask: a register array."""
        flat = threads.flat.reshape(-1)
        masks = np.broadcast_to(mask, threads.flat.shape).reshape(-1) if mask.size > 1 else mask.reshape(-1)
        self.group.record.add(WarpBarrier(self.group.tick(), self.team, flat, masks))
        self._same_in_all_blocks &= threads.whole and mask.shape[0] == 1
        full = np.broadcast_to(masks == FULL_MASK, flat.shape)
        self._warps = self._warps.copy()
        self._warps[flat[full] // LANES] += 1

    def fence(self, threads: Selection, scope: str) -> None:
        """A memory fence; scope: "cta", "gpu" or "sys"."""
        flat = None if threads.whole else threads.flat.reshape(-1)
        self.group.record.add(Fence(self.group.tick(), self.team, flat, SCOPES[scope]))

    def finish(self) -> None:
        """The launch is over: checks what is still open."""
        self._close_interval()
        self.group.finish(self.team)

    # Shared memory

    def _access(
        self,
        threads: Selection,
        kind: str,
        shared: bool,
        address: Array,
        nbytes: int,
        site: int,
        values: Sequence[Array] | None,
        volatile: bool,
    ) -> Access:
        flat = None if threads.whole else threads.flat
        return Access(
            self.team,
            self.group.tick(),
            kind,
            volatile,
            site,
            nbytes,
            shared,
            address,
            flat,
            self._epochs,
            self._warps,
            values,
        )

    def _close_interval(self) -> None:
        self._check_shared()
        self._log, self._log_size = [], 0
        self._same_in_all_blocks = True

    def _check_shared(self) -> None:
        if not any(access.writes for access in self._log):
            return
        shift = granule_shift(self._log)
        key = _content(self._log)
        if key in self._outcomes:
            pairs = self._outcomes[key]
        else:
            pairs = self._racing_pairs(shift)
            if len(self._outcomes) < self._OUTCOMES_LIMIT and (pairs is None or len(pairs[0]) < self._OUTCOMES_LIMIT):
                self._outcomes[key] = pairs
        if pairs is not None:
            pairs = pairs if not self._one_block() else in_all_blocks(self._log, pairs)
            report_pairs(self._log, pairs, 1 << shift, self.group.record)

    def _one_block(self) -> bool:
        """Whether block 0 can stand for all, since all do the same at the same addresses."""
        return self._same_in_all_blocks and all(a.flat is None and a.address.shape[0] == 1 for a in self._log)

    def _racing_pairs(self, shift: int) -> Pairs | None:
        log, one_block = self._log, self._one_block()
        stride = max(int(a.address.max()) + a.nbytes for a in log) >> shift  # words of a block

        def words(access: Access) -> Integers:
            word = (access.addresses(one_block)[:, None] >> shift) + np.arange(max(1, access.nbytes >> shift))
            if not one_block:
                word += (access.threads() // self.team.block_threads * stride)[:, None]
            return word

        return racing_pairs(log, words, stride * (1 if one_block else self.team.blocks), one_block)


def _content(log: list[Access]) -> bytes:
    """Equal for intervals in which the same threads did the same at the same addresses."""
    digest = hashlib.blake2b(digest_size=16)
    base = log[0].epochs
    for access in log:
        head = (
            access.kind,
            access.swaps,
            access.volatile,
            access.site,
            access.nbytes,
            access.address.shape,
            access.address.dtype.str,
        )
        digest.update(repr((*head, access.team.blocks, access.team.block_threads, access.team.first_thread)).encode())
        digest.update(access.address.tobytes())
        if access.flat is not None:
            digest.update(access.flat.tobytes())
        if access.epochs is not base:
            digest.update((access.epochs - base).tobytes())
        if access.warps is not log[0].warps:
            digest.update((access.warps - log[0].warps).tobytes())
    return digest.digest()
