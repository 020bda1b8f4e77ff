"""What is counted: for one PTX instruction, for one CUDA line, or for a whole launch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from labkit.sim.coalescing import SECTOR


@dataclass
class Traffic:
    """Requests to global memory. A request is one instruction of one warp."""

    requests: int = 0
    sectors: int = 0  # of 32 bytes, counted anew for each request
    useful_bytes: int = 0  # bytes that the lanes of a request asked for, each byte once

    @property
    def sectors_per_request(self) -> float:
        """4 for 32 neighbouring floats, 32 where each lane meets a sector of its own."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def efficiency(self) -> float:
        """Useful bytes over bytes moved, 0 to 1; 1 where nothing was moved."""
        return self.useful_bytes / (SECTOR * self.sectors) if self.sectors else 1.0


@dataclass
class SharedTraffic:
    """Requests to shared memory."""

    requests: int = 0
    cycles: int = 0  # that the banks are busy
    ideal_cycles: int = 0  # the same without any conflict: 1 a request, 2 for 8 bytes a lane, 4 for 16 bytes

    @property
    def conflicts(self) -> int:
        """Cycles lost to bank conflicts."""
        return self.cycles - self.ideal_cycles


@dataclass
class SiteCounts:
    """What one PTX instruction, or all instructions of one CUDA line, did."""

    thread_instructions: int = 0  # instructions times threads
    warp_instructions: int = 0  # instructions times warps
    global_load: Traffic = field(default_factory=Traffic)
    global_store: Traffic = field(default_factory=Traffic)
    global_atomic: Traffic = field(default_factory=Traffic)
    shared_load: SharedTraffic = field(default_factory=SharedTraffic)
    shared_store: SharedTraffic = field(default_factory=SharedTraffic)
    shared_atomic: SharedTraffic = field(default_factory=SharedTraffic)
    constant_requests: int = 0  # loads from __constant__ variables, which have a cache of their own
    local_requests: int = 0
    local_bytes: int = 0
    atomics: int = 0  # atomic operations times threads
    branches: int = 0  # conditional branches times warps
    divergent_branches: int = 0  # of them, those whose warp took both ways

    def add(self, other: Any) -> None:
        """Adds another instruction's counts to these."""
        _add(self, other)


def _add(total: Any, part: Any) -> None:
    for each in fields(total):
        mine, theirs = getattr(total, each.name), getattr(part, each.name)
        if isinstance(mine, int):
            setattr(total, each.name, mine + theirs)
        else:
            _add(mine, theirs)
