"""From an address register to the buffer, shared or local memory that all of its lanes fall into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.buffers import ADDRESS_MASK, Buffer
from labkit.sim.memory import BlockMemory

if TYPE_CHECKING:
    from labkit.sim.launched import Run
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
MASK_64 = (1 << 64) - 1
WINDOWS = {1: "shared", 2: "local"}  # top bits of a generic address -> space


class Span:
    """What there is to know about the addresses in a register, found out when it is first asked for."""

    __slots__ = ("_bits", "_low", "address", "high")

    def __init__(self, address: Array) -> None:
        self.address = address
        self.high = int(np.maximum.reduce(address, axis=None))
        self._low = self._bits = self.high if address.size == 1 else -1

    @property
    def low(self) -> int:
        """The smallest address."""
        if self._low < 0:
            self._low = int(np.minimum.reduce(self.address, axis=None))
        return self._low

    @property
    def bits(self) -> int:
        """All addresses ORed: which low bits are in use."""
        if self._bits < 0:
            self._bits = int(np.bitwise_or.reduce(self.address, axis=None))
        return self._bits


class Spans:
    """Spans of the registers seen last. Programs use a base address many times, with different constant offsets.

    Nobody writes into a register array once generated code has seen it, so an array that is still the same object
    still has the same span.
    """

    LIMIT = 256

    def __init__(self) -> None:
        self._known: dict[int, Span] = {}

    def of(self, address: Array) -> Span:
        """The span of a uint64 or uint32 array."""
        known = self._known.get(id(address))
        if known is not None and known.address is address:
            return known
        if len(self._known) >= self.LIMIT:
            self._known.clear()
        span = self._known[id(address)] = Span(address)
        return span


def locate(
    threads: Threads, space: str, address: Array, offset: int, total: int, site: int
) -> tuple[Any, Array] | None:
    """(Buffer or BlockMemory, int64 byte offsets in it) if all lanes fall, aligned, into one; else None.

    Offsets are from Buffer.start, or from the start of a block's or thread's own row of a BlockMemory.
    """
    run = threads.run
    span = run.spans.of(address)
    start = 0
    if space == "generic" and span.high >> 60:
        window = span.low >> 60
        if window not in WINDOWS or window != span.high >> 60:
            return None
        space, start = WINDOWS[window], window << 60
    memory: Any
    if space in ("shared", "local"):
        memory = run.shared if space == "shared" else run.local
        first, end = start, start + memory.size
    else:
        memory = _buffer(run, span.low + offset, site)
        if memory is None:
            return None
        tag = (span.low + offset) & ~ADDRESS_MASK
        start, first, end = memory.start + tag, memory.base + tag, memory.end + tag
    if span.high + offset + total > end or (first - offset > 0 and span.low + offset < first):
        return None
    if address.dtype != np.uint64:
        address = address.astype(np.uint64)
    distance = offset - start
    relative = (address + np.uint64(distance & MASK_64) if distance else address).view(np.int64)
    if total > 1 and (span.bits | offset) & (total - 1) and (relative & (total - 1)).any():
        return None
    return memory, relative


def _buffer(run: Run, address: int, site: int) -> Buffer | None:
    """The buffer at an address; an instruction mostly stays in the one that it met last."""
    recent = run.recent_buffers.get(site)
    if recent is not None and recent.holds(address):
        return recent
    found = run.memory.find(address)
    if found is not None:
        run.recent_buffers[site] = found
    return found


def absolute_index(threads: Threads, memory: BlockMemory, relative: Array) -> Array:
    """Byte offsets in all of a BlockMemory, one row for each block or thread that the access distinguishes."""
    rows = threads.block_of if memory is threads.run.shared else threads.flat
    return relative + rows * memory.stride
