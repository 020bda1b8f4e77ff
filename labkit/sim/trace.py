"""A recording of what the lanes of each warp did: the addresses they asked for, and whom they listened to.

`Trace` stands where the machine expects `Counters`, and counts as they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.sim.coalescing import LANES, Array, Selection
from labkit.sim.counters import Counters
from labkit.sim.options import Options
from labkit.sim.program import Block, Instruction, Kernel, Site

LIMIT = 20_000  # requests and shuffles that are kept: a picture shows a few, and memory is finite


@dataclass(frozen=True)
class Access:
    """One load, store or atomic operation of one warp.

    space: "global" or "shared". block: flat number. warp: its number in the block. lanes: who took part.
    addresses: byte addresses of these lanes: of the process's own memory, or from the start of shared memory.
    nbytes: what each lane moved.
    """

    site: Site
    kind: str
    space: str
    block: int
    warp: int
    lanes: tuple[int, ...]
    addresses: tuple[int, ...]
    nbytes: int

    def offsets(self, tensor: Any) -> list[int]:
        """Bytes from the start of a tensor or array to where each lane begins."""
        start = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
        return [address - start for address in self.addresses]

    @property
    def threads(self) -> list[int]:
        """The lanes' thread numbers in the block."""
        return [self.warp * LANES + lane for lane in self.lanes]


@dataclass(frozen=True)
class Shuffle:
    """One shfl.sync of one warp; sources: the lane that each of the 32 lanes reads from."""

    site: Site
    block: int
    warp: int
    sources: tuple[int, ...]


class Trace(Counters):
    """Counters that also keep what each warp did, in the order in which it happened.

    kernel: as of Counters. lines: CUDA lines to record, all where None.
    Shuffles are recorded where distance and width are constants of the program, as in unrolled reductions.
    """

    def __init__(self, kernel: Kernel, lines: Collection[int] | None = None) -> None:
        super().__init__(kernel)
        self.lines = lines
        self.accesses: list[Access] = []
        self.shuffles: list[Shuffle] = []

    def global_access(
        self, threads: Selection, kind: str, address: Array, nbytes: int, site: int, shift: int = 0
    ) -> None:
        """Counts and keeps a request to global memory."""
        super().global_access(threads, kind, address, nbytes, site, shift)
        self._keep("global", threads, kind, address, nbytes, site)

    def shared_access(self, threads: Selection, kind: str, address: Array, nbytes: int, site: int) -> None:
        """Counts and keeps a request to shared memory."""
        super().shared_access(threads, kind, address, nbytes, site)
        self._keep("shared", threads, kind, address, nbytes, site)

    def block(self, block: Block, threads: Selection) -> None:
        """Counts a basic block, and keeps the shuffles in it."""
        super().block(block, threads)
        for instruction in block.instructions:
            if instruction.opcode == "shfl" and self._recorded(instruction.site):
                self._keep_shuffle(instruction, threads)

    def at(self, line: int | None = None, *, space: str = "", kind: str = "", warp: int | None = None) -> list[Access]:
        """The recorded requests of a line, a space ("global", "shared"), a kind ("load", "store", "atomic"), a warp.

        warp: counted within its block. What is not given does not restrict.
        """

        def wanted(access: Access) -> bool:
            fits = (line in (None, access.site.line), space in ("", access.space), kind in ("", access.kind))
            return all(fits) and warp in (None, access.warp)

        return [access for access in self.accesses if wanted(access)]

    def _recorded(self, site: Site) -> bool:
        room = len(self.accesses) + len(self.shuffles) < LIMIT
        return room and (self.lines is None or site.line in self.lines)

    def _keep(self, space: str, threads: Selection, kind: str, address: Array, nbytes: int, site: int) -> None:
        if not self._recorded(self.kernel.sites[site]):
            return
        everywhere = np.broadcast_to(address, threads.flat.shape).reshape(-1)
        for warp, members in _by_warp(threads):
            block, number = divmod(warp, threads.block_threads // LANES)
            lanes = tuple((threads.flat.reshape(-1)[members] % LANES).tolist())
            places = tuple(everywhere[members].tolist())
            self.accesses.append(Access(self.kernel.sites[site], kind, space, block, number, lanes, places, nbytes))

    def _keep_shuffle(self, instruction: Instruction, threads: Selection) -> None:
        sources = shuffle_sources(instruction)
        if sources is None:
            return
        for warp, _ in _by_warp(threads):
            block, number = divmod(warp, threads.block_threads // LANES)
            self.shuffles.append(Shuffle(instruction.site, block, number, sources))


def counters_for(kernel: Kernel, options: Options) -> Counters | None:
    """Who counts a launch with these options."""
    if not options.counters:
        return None
    return Trace(kernel) if options.trace else Counters(kernel)


def _by_warp(threads: Selection) -> Iterator[tuple[int, slice]]:
    """(flat warp number, its place in ``threads.flat`` read row by row) of each warp that runs."""
    warps = threads.flat.reshape(-1) // LANES
    starts = np.flatnonzero(np.diff(warps, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(warps)], strict=True):
        yield int(warps[start]), slice(int(start), int(end))


def shuffle_sources(instruction: Instruction) -> tuple[int, ...] | None:
    """The lane that each lane reads from; None where the program computes it in a register.

    Source: PTX ISA, shfl.sync. The last 5 bits of operand c clamp the source lane, bits 8 to 12 split the warp into
    segments that keep to themselves; a lane whose source lies beyond reads its own value.
    """
    mode = instruction.modifiers[1]
    try:
        distance, clamp = (int(operand, 0) & 0xFFFFFFFF for operand in instruction.operands[2:4])
    except ValueError:
        return None
    distance, limit, segments = distance & 31, clamp & 31, clamp >> 8 & 31
    return tuple(_source(mode, lane, distance, limit, segments) for lane in range(LANES))


def _source(mode: str, lane: int, distance: int, limit: int, segments: int) -> int:
    lowest, highest = lane & segments, (lane & segments) | (limit & ~segments)
    if mode == "up":
        return lane - distance if lane - distance >= highest else lane
    source = {"down": lane + distance, "bfly": lane ^ distance, "idx": lowest | (distance & ~segments)}[mode]
    return source if source <= highest else lane
