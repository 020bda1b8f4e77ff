"""Grid and block of a launch, and the special registers that follow from them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Lanes = npt.NDArray[np.int64]
WARP = 32


def constant(value: int, kind: Any = np.uint32) -> Array:
    """A register array with one value for all threads."""
    return np.full((1, 1), value, kind)


@lru_cache(maxsize=16)
def geometry_of(grid: tuple[int, int, int], block: tuple[int, int, int]) -> Geometry:
    """The Geometry of a launch; launches of the same shape share it."""
    return Geometry(grid, block)


class Geometry:
    """Grid and block of a launch, and every thread's special registers.

    ``block_threads`` is rounded up to whole warps; threads from ``real_threads`` on do not exist and never run.
    """

    def __init__(self, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        self.grid, self.block = grid, block
        self.blocks = grid[0] * grid[1] * grid[2]
        self.real_threads = block[0] * block[1] * block[2]
        self.warps_per_block = -(-self.real_threads // WARP)
        self.block_threads = self.warps_per_block * WARP
        self.special = self._special_registers()

    def existing(self) -> Lanes:
        """Flat numbers of all threads that exist."""
        flat = np.arange(self.blocks)[:, None] * self.block_threads + np.arange(self.real_threads)
        return flat.reshape(-1)

    def _special_registers(self) -> dict[str, Array]:
        block = np.arange(self.blocks, dtype=np.uint32)[:, None]
        thread = np.arange(self.block_threads, dtype=np.uint32)[None]
        lane = thread % np.uint32(WARP)
        bit = np.uint32(1) << lane
        registers = {
            "laneid": lane,
            "warpid": thread // np.uint32(WARP),
            "nwarpid": constant(self.warps_per_block),
            "smid": block % np.uint32(80),
            "nsmid": constant(80),
            "gridid": constant(1, np.uint64),
            "lanemask_eq": bit,
            "lanemask_lt": bit - np.uint32(1),
            "lanemask_le": bit | (bit - np.uint32(1)),
            "lanemask_gt": ~(bit | (bit - np.uint32(1))),
            "lanemask_ge": ~(bit - np.uint32(1)),
        }
        for name, numbers, shape in (("tid", thread, self.block), ("ctaid", block, self.grid)):
            for axis, value in zip("xyz", _coordinates(numbers, shape), strict=True):
                registers[f"{name}_{axis}"] = value
        for name, shape in (("ntid", self.block), ("nctaid", self.grid)):
            for axis, size in zip("xyz", shape, strict=True):
                registers[f"{name}_{axis}"] = constant(size)
        return registers


def _coordinates(numbers: Array, shape: tuple[int, int, int]) -> list[Array]:
    """x, y and z of flat numbers; (1, 1) where the shape has one value only."""
    x, y, z = shape
    parts = (numbers if y * z == 1 else numbers % np.uint32(x), numbers // np.uint32(x), numbers // np.uint32(x * y))
    values = [parts[0], parts[1] if z == 1 else parts[1] % np.uint32(y), parts[2]]
    return [constant(0) if size == 1 else value for size, value in zip(shape, values, strict=True)]
