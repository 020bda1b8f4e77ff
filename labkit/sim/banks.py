"""Shared memory has 32 banks of 4 bytes: what a warp's request costs in cycles.

Each bank serves one word a cycle; lanes that want the same word share it. A warp's request of 8 bytes a lane is served
in two halves of 16 lanes, one of 16 bytes in four quarters of 8 lanes, since 128 bytes leave the banks in a cycle
(CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x to 7.x).
"""

from __future__ import annotations

import numpy as np

from labkit.sim.coalescing import IDLE, LANES, Integers

BANKS = 32
WORD = 4  # bytes
LINE = BANKS * WORD  # addresses that differ by a multiple of this meet the same bank


def bank_cycles(rows: Integers, nbytes: int) -> tuple[int, int]:
    """(cycles, cycles without any conflict) of the requests in ``rows``.

    rows: byte addresses of 32 lanes, or of one lane for all (see coalescing.relative); nbytes: bytes of a lane.
    """
    parts = max(1, nbytes // WORD)
    if rows.shape[1] == 1:
        return len(rows) * parts, len(rows) * parts
    groups = rows.reshape(len(rows) * parts, LANES // parts)
    busy = groups != IDLE
    words = groups[:, :, None] // WORD + np.arange(parts)
    words = np.where(busy[:, :, None], words, IDLE).reshape(len(groups), -1)
    return _cycles(words), int(np.count_nonzero(busy.any(axis=1)))


def _cycles(words: Integers) -> int:
    """The busiest bank's different words, summed over the groups."""
    ordered = np.sort(words, axis=1)
    new = ordered != IDLE
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    group = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    slots = group[new] * BANKS + (ordered[new] % BANKS)
    return int(np.bincount(slots, minlength=len(words) * BANKS).reshape(-1, BANKS).max(axis=1).sum())
