"""What a launch would have cost the hardware: instructions, sectors, bank conflicts, divergence, by CUDA line.

The machine calls the hooks (`block`, `branch`, `global_access`, ...) while it runs; everything else is arithmetic over
what they noted for each PTX instruction. Counts are exact properties of the program and its data, not a model of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from labkit.sim.banks import LINE, bank_cycles
from labkit.sim.coalescing import LANES, SECTOR, Array, Patterns, Selection, count_warps, sectors_of, warp_rows
from labkit.sim.counts import SharedTraffic, SiteCounts, Traffic
from labkit.sim.program import Block, Kernel, Site
from labkit.sim.touched import Touched

PATTERNS = Patterns()  # of all launches: what a pattern costs depends on nothing else
SHARED_COSTS = 4096  # requests to shared memory whose cost is remembered by their addresses


class Counters:
    """Counts of one launch.

    Args:
        kernel: whose sites are counted.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._sites: dict[int, SiteCounts] = defaultdict(SiteCounts)  # what the hooks have noted, by site
        self._runs = [[0, 0] for _ in kernel.blocks]  # threads and warps that executed each basic block
        self._shared_costs: dict[tuple[Any, ...], tuple[int, int, int]] = {}
        self._read, self._written = Touched(), Touched()
        self.block_barriers = 0  # barriers times thread blocks

    # Hooks of the machine

    def block(self, block: Block, threads: Selection) -> None:
        """A basic block is executed by the threads of a selection."""
        runs = self._runs[block.index]
        runs[0] += threads.count
        runs[1] += count_warps(threads)

    def branch(self, threads: Selection, condition: Array, site: int) -> None:
        """A conditional branch; condition: bool, a register array."""
        counts = self._sites[site]
        rows, weight = warp_rows(threads, condition)
        counts.branches += weight * len(rows)
        if rows.shape[1] == LANES:
            mixed = (rows == 1).any(axis=1) & (rows == 0).any(axis=1)
            counts.divergent_branches += weight * int(np.count_nonzero(mixed))

    def global_access(
        self, threads: Selection, kind: str, address: Array, nbytes: int, site: int, shift: int = 0
    ) -> None:
        """A request to global memory. kind: "load", "store" or "atomic"; nbytes: of one lane.

        shift: what lies between an address here and the one that its buffer would have on a GPU.
        """
        address = address.astype(np.int64, copy=False) + shift if shift else address
        rows, weight = warp_rows(threads, address)
        counts = self._sites[site]
        traffic: Traffic = getattr(counts, f"global_{kind}")
        if kind == "atomic":
            counts.atomics += threads.count
        if kind != "store":
            self._read.add(address)
        if kind != "load":
            self._written.add(address)
        sectors, useful = PATTERNS.cost(rows, nbytes, SECTOR, sectors_of)
        traffic.requests += weight * len(rows)
        traffic.sectors += weight * sectors
        traffic.useful_bytes += weight * useful

    def shared_access(self, threads: Selection, kind: str, address: Array, nbytes: int, site: int) -> None:
        """A request to shared memory; address: bytes from the start of the block's shared memory."""
        counts = self._sites[site]
        if kind == "atomic":
            counts.atomics += threads.count
        traffic: SharedTraffic = getattr(counts, f"shared_{kind}")
        requests, cycles, ideal = self._shared_cost(threads, address, nbytes)
        traffic.requests += requests
        traffic.cycles += cycles
        traffic.ideal_cycles += ideal

    def _shared_cost(self, threads: Selection, address: Array, nbytes: int) -> tuple[int, int, int]:
        """(requests, cycles, ideal cycles); loops come back to the very same addresses, which are then looked up."""
        who = b"" if threads.whole else threads.flat.tobytes()
        key = (nbytes, address.shape, address.tobytes(), who)
        cost = self._shared_costs.get(key)
        if cost is None:
            rows, weight = warp_rows(threads, address)
            cycles, ideal = PATTERNS.cost(rows, nbytes, LINE, bank_cycles)
            cost = weight * len(rows), weight * cycles, weight * ideal
            if len(self._shared_costs) < SHARED_COSTS and address.size <= SHARED_COSTS:
                self._shared_costs[key] = cost
        return cost

    def constant_access(self, threads: Selection, site: int) -> None:
        """A request to a __constant__ variable: served by the constant cache, it moves no sectors of global memory."""
        self._sites[site].constant_requests += count_warps(threads)

    def local_access(self, threads: Selection, kind: str, address: Array, nbytes: int, site: int) -> None:
        """A request to local memory (spilled registers, indexed arrays); lanes interleave, so it always coalesces."""
        counts = self._sites[site]
        counts.local_requests += count_warps(threads)
        counts.local_bytes += threads.count * nbytes

    def barrier(self, blocks: int) -> None:
        """So many thread blocks have passed a barrier."""
        self.block_barriers += blocks

    # What they add up to

    def by_site(self) -> list[tuple[Site, SiteCounts]]:
        """Every PTX instruction with its counts, in program order."""
        result = []
        executed: Counter[int] = Counter()
        warps: Counter[int] = Counter()
        for block, (thread_runs, warp_runs) in zip(self.kernel.blocks, self._runs, strict=True):
            for instruction in block.instructions:
                executed[instruction.site.index] += thread_runs
                warps[instruction.site.index] += warp_runs
        for site in self.kernel.sites:
            counts = SiteCounts(executed[site.index], warps[site.index])
            if site.index in self._sites:
                counts.add(self._sites[site.index])
            result.append((site, counts))
        return result

    def by_line(self) -> dict[tuple[str, int], SiteCounts]:
        """(CUDA file, line) -> the counts of all its instructions, in order; ("", 0) where PTX names no line."""
        lines: dict[tuple[str, int], SiteCounts] = {}
        for site, counts in self.by_site():
            lines.setdefault((site.file, site.line), SiteCounts()).add(counts)
        return dict(sorted(lines.items()))

    def total(self) -> SiteCounts:
        """The counts of the whole launch."""
        total = SiteCounts()
        for _, counts in self.by_site():
            total.add(counts)
        return total

    def instructions(self) -> dict[str, tuple[int, int]]:
        """Class of instruction ("load.global", "alu.f32", ...) -> (times warps, times threads), the largest first."""
        classes: dict[str, tuple[int, int]] = {}
        for site, counts in self.by_site():
            warps, threads = classes.get(site.kind, (0, 0))
            classes[site.kind] = (warps + counts.warp_instructions, threads + counts.thread_instructions)
        return dict(sorted(((k, v) for k, v in classes.items() if v[0]), key=lambda item: -item[1][0]))

    @property
    def global_load(self) -> Traffic:
        """All loads from global memory."""
        return self.total().global_load

    @property
    def global_store(self) -> Traffic:
        """All stores to global memory, without atomics."""
        return self.total().global_store

    @property
    def shared_load(self) -> SharedTraffic:
        """All loads from shared memory."""
        return self.total().shared_load

    @property
    def shared_store(self) -> SharedTraffic:
        """All stores to shared memory, without atomics."""
        return self.total().shared_store

    @property
    def bank_conflicts(self) -> int:
        """Cycles lost to bank conflicts."""
        total = self.total()
        return total.shared_load.conflicts + total.shared_store.conflicts + total.shared_atomic.conflicts

    @property
    def dram_read_bytes(self) -> int:
        """32 bytes for each different sector that was read: what must come from DRAM if caches lose nothing."""
        return SECTOR * self._read.sectors()

    @property
    def dram_write_bytes(self) -> int:
        """32 bytes for each different sector that was written."""
        return SECTOR * self._written.sectors()

    @property
    def mma(self) -> int:
        """Tensor-core instructions times warps."""
        return self.instructions().get("mma", (0, 0))[0]

    @property
    def atomics(self) -> int:
        """Atomic operations times threads."""
        return self.total().atomics

    @property
    def barriers(self) -> int:
        """Barriers times thread blocks."""
        return self.block_barriers

    @property
    def divergent_branches(self) -> int:
        """Branches at which a warp took both ways."""
        return self.total().divergent_branches

    def table(self) -> Any:
        """A rich table of the launch."""
        from labkit.sim.report import counters_table

        return counters_table(self)

    def to_json(self) -> dict[str, Any]:
        """Plain values: totals, classes of instructions, and lines."""
        from labkit.sim.report import counters_json

        return counters_json(self)

    def __str__(self) -> str:
        from labkit.sim.report import plain

        return plain(self.table())
