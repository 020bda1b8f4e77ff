"""What a launch tells those who watch it: barriers that were passed, and faults, by thread and instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.errors import KernelLaunchError
from labkit.sim.geometry import Geometry
from labkit.sim.memory import BlockMemory
from labkit.sim.options import Observers
from labkit.sim.program import Kernel
from labkit.sim.threads import Threads

Array = npt.NDArray[Any]


class Observed:
    """A launch as its observers see it; `Run` adds what it does."""

    def __init__(self, kernel: Kernel, geometry: Geometry, shared: BlockMemory, observers: Observers) -> None:
        self.kernel = kernel
        self.geometry = geometry
        self.shared = shared
        self.observers = observers
        self.findings, self.races, self.counters = observers.findings, observers.races, observers.counters
        self.brought_undefined = False  # a shuffle has read from a lane outside its mask

    def passed_by_blocks(self, blocks: Array | None) -> None:
        """All threads of these blocks (None: of all) have passed a barrier."""
        self.shared.retire_shadow()
        if self.counters is not None:
            self.counters.barrier(self.geometry.blocks if blocks is None else len(blocks))
        if self.races is not None:
            self.races.barrier(None if blocks is None or len(blocks) == self.geometry.blocks else blocks)

    def passed_by_some(self, arrived: Array, waited: Array) -> None:
        """Some threads of a block have met at a barrier of their own."""
        if self.counters is not None:
            self.counters.barrier(1)
        if self.races is not None:
            self.races.barrier(arrived=arrived, waited=waited)

    def report(
        self, kind: str, site: int, text: str, threads: Threads, positions: Array, address: Array | None = None
    ) -> None:
        """A fault of the threads at these positions of a selection."""
        self.report_flat(kind, site, text, threads.flat.reshape(-1)[positions], address)

    def report_lanes(
        self, kind: str, site: int, text: str, threads: Threads, bad: Array, address: Array | None = None
    ) -> None:
        """A fault of the threads where ``bad`` (a register) is true."""
        where = np.flatnonzero(threads.spread(bad))
        self.report(kind, site, text, threads, where, None if address is None else threads.spread(address)[where])

    def report_flat(self, kind: str, site: int, text: str, lanes: Array, address: Array | None = None) -> None:
        """A fault of the threads with these flat numbers."""
        blocks, threads = np.divmod(lanes, self.geometry.block_threads)
        self._report(kind, site, text, blocks=blocks, threads=threads, address=address)

    def report_barrier(self, site: int, lanes: Array, other_site: int, others: Array) -> None:
        """Threads of one block have met at two different barriers of the program."""
        block, thread = np.divmod(lanes, self.geometry.block_threads)
        other_block, other_thread = (int(x) for x in np.divmod(others[0], self.geometry.block_threads))
        text = "waits at one barrier while other threads of its block wait at another"
        other = {"other_site": other_site, "other_block": other_block, "other_thread": other_thread}
        self._report("barrier-divergence", site, text, blocks=block, threads=thread, **other)

    def _report(self, kind: str, site: int | None, text: str, **where: Any) -> None:
        if self.findings is not None:
            self.findings.report(kind, site, text, **where)
            return
        line = "" if site is None else f" at line {self.kernel.sites[site].line or self.kernel.sites[site].ptx_line}"
        raise KernelLaunchError(
            f"{self.kernel.name}{line}: a thread {text}." if site is not None else f"{self.kernel.name}: {text}.",
            cure="Run it through labkit.sim.run to see every finding.",
        )
