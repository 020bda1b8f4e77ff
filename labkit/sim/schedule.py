"""Which of the diverged threads run next.

The group that stands earliest in reverse postorder goes first, so that threads meet again at the first place where all
of their paths lead. That alone would let a thread that spins on a flag keep the one that sets it from ever running; so
a group loses patience as it goes round a loop, and then the others go first until every one of them is out of patience
too. Loops that read memory for news (volatile or atomic) use up patience much faster than loops that compute.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.groups import Group
from labkit.sim.program import EXIT, WarpSync

if TYPE_CHECKING:
    from labkit.sim.machine import Run

Array = npt.NDArray[Any]
PATIENCE = 512  # rounds of a loop before other groups go first
POLL_COST = 128  # rounds that one round counts for if it looked for news


class Schedule:
    """The groups of a launch that are ready to run or wait for lanes of their warp."""

    def __init__(self, run: Run, seed: int | None) -> None:
        self.run = run
        self.groups: dict[int, Group] = {}  # by position
        self.rounds = 0  # how often everybody was out of patience
        self._random = None if seed is None else random.Random(seed)
        self._released = np.zeros(run.geometry.blocks * run.geometry.block_threads, bool)

    def add(self, group: Group) -> None:
        """A group is ready, or threads have ended. Groups at the same place become one."""
        if group.position == EXIT:
            self.run.end_threads(group)
            self.look_again()
            return
        here = self.groups.pop(group.position, None)
        if here is not None:
            group = here.merge(group)
        group.waiting = False
        self.groups[group.position] = group
        sync = self.run.kernel.blocks[group.position].sync
        if sync is not None and sync.releases_alone:
            self.look_again()

    def look_again(self) -> None:
        """Somebody has come or gone: those who wait for lanes may have what they need."""
        for group in self.groups.values():
            group.waiting = False

    def next(self) -> Group | None:
        """Takes out the group that runs next, all lanes that its first instruction needs present; None: all wait."""
        while True:
            ready = [group for group in self.groups.values() if not group.waiting]
            if not ready:
                return None
            group = self._choose(ready)
            del self.groups[group.position]
            sync = self.run.kernel.blocks[group.position].sync
            if sync is None or self._bring_together(group, sync):
                return group

    def force(self) -> Group | None:
        """Takes out the earliest group that waits for lanes, to run without them; reports which ones."""
        if not self.groups:
            return None
        group = self.groups.pop(min(self.groups))
        sync = self.run.kernel.blocks[group.position].sync
        if sync is not None:
            present = int(self._bits(group.lanes)[group.lanes[0] // 32])
            missing = int(_mask_of(group, sync).flat[0]) & ~present
            text = f"waits for {name_lanes(missing)} of its mask, which never come"
            self.run.report_flat("missing-lanes", sync.site.index, text, group.lanes)
        return group

    def went_round(self, group: Group, polled: bool) -> None:
        """A group has taken a branch back."""
        group.spent += POLL_COST if polled else 1

    def _choose(self, ready: list[Group]) -> Group:
        if len(ready) == 1 and ready[0].spent < PATIENCE:
            return ready[0]
        patient = [group for group in ready if group.spent < PATIENCE]
        if not patient:
            self.rounds += 1
            for group in self.groups.values():
                group.spent = 0
            patient = ready
        if self._random is not None:
            return self._random.choice(patient)
        return min(patient, key=lambda group: group.position)

    # Warp operations that wait for the lanes of their mask

    def _bring_together(self, group: Group, sync: WarpSync) -> bool:
        """True if the group can run; lanes whose partners are missing are put back, to wait."""
        if group.threads.complete_warps:
            return True
        ready = self._have_partners(group, group.threads.spread(_mask_of(group, sync)), sync)
        if ready.all():
            return True
        staying = group
        if ready.any():
            staying = group.part(np.flatnonzero(~ready), group.position)
            going = group.part(np.flatnonzero(ready), group.position)
            self._become(group, going)
        staying.waiting = True
        self.groups[staying.position] = staying
        return bool(ready.any())

    def _become(self, group: Group, part: Group) -> None:
        group.__dict__.update(part.__dict__)

    def _have_partners(self, group: Group, mask: Array, sync: WarpSync) -> Array:
        """For each lane, whether all lanes of its mask are here, or have ended."""
        warps = group.threads.warp_of
        present = self._bits(group.lanes)
        if sync.releases_alone:
            for other in self.groups.values():
                partner = self.run.kernel.blocks[other.position].sync
                if partner is not None and partner.releases_alone:
                    present |= self._bits(other.lanes)
        missing = mask & self._bits(self.run.alive_lanes())[warps] & ~present[warps]
        ready = missing == 0
        if sync.releases_alone:
            ready |= self._released[group.lanes]
            self._released[group.lanes[ready]] = False
            self._release_partners(group, mask, ready)
        return ready

    def _release_partners(self, group: Group, mask: Array, ready: Array) -> None:
        """Whoever stands at another bar.warp.sync with lanes that go on now must not wait for them any more."""
        open_ = np.zeros(self._released.size // 32, np.uint32)
        np.bitwise_or.at(open_, group.threads.warp_of[ready], mask[ready])
        for other in self.groups.values():
            partner = self.run.kernel.blocks[other.position].sync
            if partner is not None and partner.releases_alone:
                named = (open_[other.lanes // 32] >> (other.lanes % 32).astype(np.uint32)) & np.uint32(1)
                self._released[other.lanes[named == 1]] = True
                other.waiting &= not named.any()

    def _bits(self, lanes: Array) -> Array:
        """uint32 for each warp of the launch: which of its lanes are among these."""
        flags = np.zeros(self._released.size, bool)
        flags[lanes] = True
        return np.packbits(flags, bitorder="little").view(np.uint32).copy()


def _mask_of(group: Group, sync: WarpSync) -> Array:
    mask = group.read(sync.mask) if isinstance(sync.mask, str) else np.full((1, 1), sync.mask)
    return mask.astype(np.uint32)


def name_lanes(bits: int) -> str:
    """The lanes of a mask in words: "lane 3", "lanes 0-3, 7"."""
    lanes = [lane for lane in range(32) if bits >> lane & 1]
    starts = [lane for lane in lanes if lane - 1 not in lanes]
    ends = [lane for lane in lanes if lane + 1 not in lanes]
    ranges = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return f"lane{'s' if len(lanes) > 1 else ''} {', '.join(ranges)}"
