"""Loads and stores: from an address register to bytes of a buffer, of shared or of local memory, and back.

The fast way serves an access whose lanes all fall, aligned, into one buffer or array: one addition, one maximum for the
bounds, one gather. Everything else (lanes in several buffers or spaces, out of bounds, misaligned) is cut by
`labkit.sim.lanes` into parts that the fast way serves; lanes at fault are reported, load 0 and store nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.buffers import Buffer
from labkit.sim.lanes import split_lanes
from labkit.sim.locate import absolute_index, locate
from labkit.sim.memory import BlockMemory
from labkit.sim.shadows import check_written, mark_block_written, mark_written
from labkit.sim.warp import check_defined

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]


def load(
    threads: Threads, space: str, address: Array, offset: int, width: int, count: int, site: int, volatile: bool
) -> list[Array]:
    """``count`` arrays of unsigned integers of ``width`` bytes; see Threads.load."""
    run = threads.run
    if volatile:
        run.poll(address, site)
    place = locate(threads, space, address, offset, width * count, site)
    if place is None:
        return _load_in_parts(threads, space, address, offset, width, count, site, volatile)
    memory, relative = place
    watch(threads, memory, "load", relative, width * count, site, volatile=volatile)
    check_written(threads, memory, relative, width * count, site)
    taken = _take(threads, memory, relative, width, count)
    return [taken] if count == 1 else list(taken.transpose(2, 0, 1).copy())


def store(
    threads: Threads,
    space: str,
    address: Array,
    offset: int,
    width: int,
    count: int,
    site: int,
    volatile: bool,
    values: list[Array],
) -> None:
    """Writes ``count`` unsigned integers of ``width`` bytes; see Threads.store."""
    total = width * count
    place = locate(threads, space, address, offset, total, site)
    if place is None:
        parts = split_lanes(threads, space, address, offset, total, site, "writes")
        for positions, part, part_space, addresses in parts:
            chosen = [threads.spread(value)[positions][None] for value in values]
            store(part, part_space, addresses, 0, width, count, site, volatile, chosen)
        return
    memory, relative = place
    threads.run.memory.changes += 1
    watch(threads, memory, "store", relative, total, site, values, volatile)
    if threads.run.brought_undefined:
        check_defined(threads, values, site)
    if isinstance(memory, BlockMemory):
        mark_block_written(threads, memory, relative, total)
        relative = absolute_index(threads, memory, relative)
    elif memory.shadow is not None:
        mark_written(memory, relative, total)
    index = relative >> total.bit_length() - 1
    if count == 1:
        memory.words(width)[index] = last_along(values[0], index.shape)
    else:
        memory.rows(width, count)[index] = _rows(values, index.shape)


def _load_in_parts(
    threads: Threads, space: str, address: Array, offset: int, width: int, count: int, site: int, volatile: bool
) -> list[Array]:
    results = [np.zeros(threads.count, f"u{width}") for _ in range(count)]
    total = width * count
    for positions, part, part_space, addresses in split_lanes(threads, space, address, offset, total, site, "reads"):
        loaded = load(part, part_space, addresses, 0, width, count, site, volatile)
        for result, values in zip(results, loaded, strict=True):
            result[positions] = part.spread(values)
    return [result.reshape(threads.shape) for result in results]


def _take(threads: Threads, memory: Any, relative: Array, width: int, count: int) -> Array:
    shift = (width * count).bit_length() - 1
    if isinstance(memory, BlockMemory):
        if threads.whole and relative.shape[0] == 1 and memory is threads.run.shared:
            return memory.words_by_row(width, count).take(relative[0] >> shift, axis=1, mode="clip")
        relative = absolute_index(threads, memory, relative)
    index = relative >> shift
    if count == 1:
        return memory.words(width).take(index, mode="clip")  # within bounds already; "clip" saves NumPy's own test
    return memory.rows(width, count).take(index, axis=0, mode="clip")


# Values


def last_along(value: Array, shape: tuple[int, ...]) -> Array:
    """Where threads share an address along an axis, the last one's value stays."""
    if value.shape[0] > shape[0]:
        value = value[-1:]
    return value[:, -1:] if value.shape[1] > shape[1] else value


def _rows(values: list[Array], shape: tuple[int, ...]) -> Array:
    rows = np.empty((*shape, len(values)), values[0].dtype)
    for position, value in enumerate(values):
        rows[..., position] = last_along(value, shape)
    return rows


# Observers


def watch(
    threads: Threads,
    memory: Any,
    kind: str,
    relative: Array,
    total: int,
    site: int,
    values: list[Array] | None = None,
    volatile: bool = False,
) -> None:
    """Tells the race check and the counters of an access; kind: "load", "store" or "atomic"."""
    run = threads.run
    races, counters = run.races, run.counters
    if races is None and counters is None:
        return
    if isinstance(memory, Buffer):
        address = relative + memory.start
        if races is not None:
            races.global_access(threads, memory, kind, address, total, site, values=values, volatile=volatile)
        if counters is not None and memory.constant:
            counters.constant_access(threads, site)
        elif counters is not None:
            counters.global_access(threads, kind, address, total, site, memory.shift)
    elif memory is run.shared:
        if races is not None:
            races.shared_access(threads, kind, relative, total, site, values=values, volatile=volatile)
        if counters is not None:
            counters.shared_access(threads, kind, relative, total, site)
    elif counters is not None:
        counters.local_access(threads, kind, relative, total, site)
