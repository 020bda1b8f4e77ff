"""The different sectors that a launch touches: what DRAM has to deliver or take at least once."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.sim.coalescing import SECTOR, Array, Integers


class Touched:
    """A set of sectors. Addresses are kept at first and merged in large pieces: kernels make many small requests."""

    PENDING = 1 << 21  # addresses kept before they are merged

    def __init__(self) -> None:
        self._pending: list[Array] = []
        self._size = 0
        self._merged: Integers = np.zeros(0, np.int64)

    def add(self, address: Array) -> None:
        """Byte addresses of any shape, aligned to the size of their access: none reaches into a second sector."""
        self._pending.append(address)
        self._size += address.size
        if self._size > self.PENDING:
            self._merge()

    def sectors(self) -> int:
        """How many different sectors there are."""
        self._merge()
        return len(self._merged)

    def _merge(self) -> None:
        if not self._pending:
            return
        flat = [address.reshape(-1).astype(np.int64, copy=False) for address in self._pending]
        fresh = distinct(np.concatenate(flat) // SECTOR)
        self._merged = distinct(np.concatenate([self._merged, fresh]))
        self._pending, self._size = [], 0


def distinct(values: Any) -> Integers:
    """The different values in ascending order.

    Where they lie close together, marking them in a bitmap is several times as fast as sorting.
    """
    if not len(values):
        return np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low > 8 * len(values) + 1_000_000:
        return _by_pieces(values, low, high)
    seen = np.zeros(high - low + 1, bool)
    seen[values - low] = True
    return np.flatnonzero(seen) + low


def _by_pieces(values: Integers, low: int, high: int) -> Integers:
    """Splits at the widest gap among a few samples: buffers lie far apart, the addresses within one do not."""
    samples = np.unique(values[:: max(1, len(values) // 4096)])
    gaps = np.diff(samples)
    if not len(gaps) or gaps.max() < (high - low) // 64:
        return np.unique(values)
    middle = int(samples[gaps.argmax()]) + int(gaps.max()) // 2
    return np.concatenate([distinct(values[values <= middle]), distinct(values[values > middle])])
