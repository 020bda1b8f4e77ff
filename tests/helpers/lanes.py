"""Hand-made selections of threads and kernels, as the simulator's checks and counters see them."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.sim.program import Block, Kernel, Module, Site


class Lanes:
    """All threads of ``blocks`` x ``block_threads``, or some of them by their flat numbers."""

    def __init__(self, blocks: int, block_threads: int, some: Any = None) -> None:
        self.blocks, self.block_threads = blocks, block_threads
        self.whole = some is None
        everyone = np.arange(blocks * block_threads).reshape(blocks, block_threads)
        self.flat = everyone if some is None else np.sort(np.asarray(some, dtype=np.int64))[None]
        self.count = self.flat.size


def kernel_of(*kinds: str) -> Kernel:
    """A kernel of one basic block whose site number i has kinds[i] and stands on line i + 1."""
    sites = [Site(i, 10 * (i + 1), "k.cu", i + 1, f"{kind} %r{i}", kind) for i, kind in enumerate(kinds)]
    block = Block(0, [], (), (), ())
    module = Module("", "sm_70", {}, {})
    return Kernel("k", [], {}, {}, 0, {}, 0, sites, [block], module)
