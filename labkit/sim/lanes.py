"""Cuts an access whose lanes do not agree into parts that do, and reports the lanes that are at fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.buffers import ADDRESS_MASK
from labkit.sim.memory import BlockMemory

if TYPE_CHECKING:
    from labkit.sim.threads import Threads

Array = npt.NDArray[Any]
Part = tuple[Array, "Threads", str, Array]
OFFSET_MASK = np.uint64((1 << 60) - 1)


def split_lanes(
    threads: Threads, space: str, address: Array, offset: int, total: int, site: int, verb: str
) -> Iterator[Part]:
    """Yields (positions, threads, space, addresses [1, n]) for lanes that access one buffer or array within bounds.

    verb: "reads", "writes" or "updates", for the reports on the lanes left out.
    """
    addresses = threads.spread(address).astype(np.uint64) + np.uint64(offset & ((1 << 64) - 1))
    everyone = np.arange(threads.count)
    if space != "generic":
        yield from _split_space(threads, space, everyone, addresses, total, site, verb)
        return
    window = addresses >> np.uint64(60)
    for name, number in (("shared", 1), ("local", 2)):
        inside = np.flatnonzero(window == number)
        if len(inside):
            yield from _split_space(threads, name, inside, addresses[inside] & OFFSET_MASK, total, site, verb)
    rest = np.flatnonzero((window != 1) & (window != 2))
    if len(rest):
        yield from _split_space(threads, "global", rest, addresses[rest], total, site, verb)


def _split_space(
    threads: Threads, space: str, positions: Array, addresses: Array, total: int, site: int, verb: str
) -> Iterator[Part]:
    odd = addresses & np.uint64(total - 1) != 0
    if odd.any():
        plain = addresses[odd] & np.uint64(ADDRESS_MASK)
        text = f"{verb} {total} bytes at {int(plain[0]):#x}, which is no multiple of {total}"
        threads.run.report("misaligned", site, text, threads, positions[odd], plain)
        positions, addresses = positions[~odd], addresses[~odd]
    if space in ("shared", "local"):
        memory = threads.run.shared if space == "shared" else threads.run.local
        yield from _split_block_memory(threads, memory, space, positions, addresses, total, site, verb)
    else:
        yield from _split_global(threads, positions, addresses.view(np.int64), total, site, verb)


def _split_block_memory(
    threads: Threads,
    memory: BlockMemory,
    space: str,
    positions: Array,
    addresses: Array,
    total: int,
    site: int,
    verb: str,
) -> Iterator[Part]:
    limit = memory.size - total
    inside = addresses <= np.uint64(limit) if limit >= 0 else np.zeros(addresses.shape, bool)
    if not inside.all():
        first = int(addresses[~inside].view(np.int64)[0])
        owner = "block" if space == "shared" else "thread"
        text = f"{verb} {total} bytes at {space} address {first:,}; the {owner} has {memory.size:,} bytes"
        threads.run.report("out-of-bounds", site, text, threads, positions[~inside], addresses[~inside])
        positions, addresses = positions[inside], addresses[inside]
    if len(positions):
        yield positions, threads.part(positions), space, addresses[None]


def _split_global(
    threads: Threads, positions: Array, addresses: Array, total: int, site: int, verb: str
) -> Iterator[Part]:
    memory = threads.run.memory
    owner = memory.find_all(addresses)
    outside = (owner < 0) | (owner != memory.find_all(addresses + (total - 1)))
    if outside.any():
        text = f"{verb} {total} bytes {memory.nearest(int(addresses[outside][0]))}"
        plain = addresses[outside] & ADDRESS_MASK
        threads.run.report("out-of-bounds", site, text, threads, positions[outside], plain)
    for buffer in np.unique(owner[~outside]):
        chosen = ~outside & (owner == buffer)
        plain = addresses[chosen] & ADDRESS_MASK  # within one buffer for sure, whatever tags they carry
        yield positions[chosen], threads.part(positions[chosen]), "global", plain.view(np.uint64)[None]
