"""Lanes, warps and sectors: what a warp's memory request costs in 32-byte sectors.

A warp's load or store is one request; the memory system moves whole sectors of 32 bytes. Lanes that read the same
sector share it, so the cost of a request is the number of different sectors that its lanes touch (CUDA C++ Best
Practices Guide, "Coalesced Access to Global Memory").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

LANES = 32
SECTOR = 32  # bytes
IDLE = -(1 << 62)  # stands for the address of a lane that takes no part

Integers = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class Selection(Protocol):
    """The part of ``Threads`` that checks and counters need: which threads run."""

    @property
    def whole(self) -> bool:
        """All threads of the launch; register arrays are then (1|blocks, 1|threads), else (1, 1|count)."""

    @property
    def flat(self) -> Array:
        """Flat numbers, block * block_threads + thread, ascending."""

    @property
    def count(self) -> int:
        """How many threads run."""

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""

    @property
    def block_threads(self) -> int:
        """Threads of a block, rounded up to whole warps."""


def warp_rows(threads: Selection, address: Array) -> tuple[Integers, int]:
    """Addresses by warp: (rows, weight), where each row stands for ``weight`` warps.

    rows has 32 columns, IDLE where a lane takes no part, or one column where all lanes have the same address.
    """
    a = address.astype(np.int64, copy=False)
    warps = threads.block_threads // LANES
    if not threads.whole:
        return scattered_rows(threads.flat.reshape(-1), np.broadcast_to(a, (1, threads.count))[0]), 1
    if a.shape[1] == 1:
        return a, warps * (threads.blocks if a.shape[0] == 1 else 1)
    return a.reshape(-1, LANES), threads.blocks if a.shape[0] == 1 else 1


def scattered_rows(flat: Array, values: Array) -> Integers:
    """Values of some threads as rows of 32 lanes, one row for each warp that has any; IDLE elsewhere.

    flat: ascending flat thread numbers, shape (n,); values: shape (n,).
    """
    warp = flat >> 5
    row = np.zeros(len(flat), np.int64)
    np.cumsum(warp[1:] != warp[:-1], out=row[1:])
    rows = np.full((int(row[-1]) + 1, LANES), IDLE, np.int64)
    rows[row, flat & 31] = values
    return rows


def count_warps(threads: Selection) -> int:
    """Warps with at least one running thread."""
    if threads.whole:
        return threads.blocks * (threads.block_threads // LANES)
    warp = threads.flat.reshape(-1) >> 5
    return int(np.count_nonzero(warp[1:] != warp[:-1])) + 1


def relative(rows: Integers, granule: int) -> Integers:
    """Rows moved so that each one's first address lies in the granule at 0: patterns that cost the same look alike."""
    if rows.min() != IDLE:
        return rows - (rows[:, :1] & -granule)
    busy = rows != IDLE
    first = np.take_along_axis(rows, busy.argmax(axis=1)[:, None], axis=1)
    return np.where(busy, rows - (first & -granule), IDLE)


def sectors_of(rows: Integers, nbytes: int) -> tuple[int, int]:
    """(sectors, useful bytes) of the requests in ``rows`` (see relative); useful bytes count each byte once.

    nbytes: bytes that a lane moves: 1, 2, 4, 8 or 16, to which its address is aligned.
    """
    ordered = rows if rows.shape[1] == 1 or (rows[:, 1:] >= rows[:, :-1]).all() else np.sort(rows, axis=1)
    return _distinct(ordered >> 5, ordered), nbytes * _distinct(ordered, ordered)


def _distinct(values: Integers, ordered: Integers) -> int:
    """Different values in each row, summed over the rows; lanes that take no part do not count."""
    new = ordered != IDLE
    new[:, 1:] &= values[:, 1:] != values[:, :-1]
    return int(np.count_nonzero(new))


class Patterns:
    """Costs of access patterns that came before: kernels repeat few patterns many times."""

    LIMIT = 20_000

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[int, int]] = {}

    def cost(
        self, rows: Integers, nbytes: int, granule: int, price: Callable[[Integers, int], tuple[int, int]]
    ) -> tuple[int, int]:
        """price(pattern, nbytes) summed over the rows; patterns equal up to a multiple of granule cost the same."""
        pattern, weight = relative(rows, granule), 1
        if len(pattern) > 1 and (pattern[1:] == pattern[0]).all():
            pattern, weight = pattern[:1], len(pattern)
        key = (granule, nbytes, pattern.shape, pattern.tobytes())
        cost = self._known.get(key)
        if cost is None:
            cost = price(pattern, nbytes)
            if len(self._known) < self.LIMIT:
                self._known[key] = cost
        return cost[0] * weight, cost[1] * weight
