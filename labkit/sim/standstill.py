"""Loops that wait for what can never come, found out early.

While no memory changes, what threads do next depends on nothing but where they stand, their registers, and the
scheduler. So once all of that is as it was before, it will be so for ever.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.sim.launched import Run

FIRST = 64  # rounds in vain before anybody looks; then from every power of two on,
LOOKS = 64  # so many rounds are compared with the first of them: loops come back to where they were after a few
CLOCK = re.compile(r"%(?:clock|globaltimer)")


class Standstill:
    """Compares the state of a launch with what it was some rounds ago."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._before: Any = None
        told_the_time = any(CLOCK.search(site.text) for site in run.kernel.sites)
        self._repeats = run.options.shuffle_seed is None and not told_the_time  # equal states have equal futures

    def proved(self, rounds: int) -> bool:
        """True if nothing can ever change. rounds: of loops that looked for news since memory last changed."""
        since = rounds - (1 << rounds.bit_length() - 1)
        if not self._repeats or rounds < FIRST or since > LOOKS:
            return False
        state = self._state()
        if since == 0:
            self._before = state
            return False
        return bool(state == self._before)

    def _state(self) -> Any:
        run = self._run
        if run.position is not None:
            return run.position, [_bits(run.registers.read(name)) for name in self._live(run.position)]
        groups = [
            (
                position,
                group.waiting,
                group.spent,
                group.lanes.tobytes(),
                [_bits(group.read(name)) for name in self._live(position)],
            )
            for position, group in run.schedule.groups.items()
        ]
        waiting = [(barrier.site.index, lanes.tobytes()) for barrier, lanes in run.barriers.waiting()]
        return groups, waiting

    def _live(self, position: int) -> list[str]:
        return sorted(self._run.live[position])


def _bits(register: Any) -> tuple[tuple[int, ...], bytes]:
    return register.shape, register.tobytes()
