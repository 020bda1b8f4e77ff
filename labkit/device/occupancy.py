"""How many warps of a kernel a V100 keeps on one multiprocessor at a time, and what stops it from keeping more.

Limits of compute capability 7.0: NVIDIA, CUDA C++ Programming Guide 12, table "Technical Specifications per Compute
Capability"; granularities: the CUDA Occupancy Calculator of CUDA 11 and 12 (registers are handed out to a warp 256 at a
time, shared memory to a block 256 bytes at a time, warps are spread over four sub-cores).
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
MAX_WARPS = 64
MAX_BLOCKS = 32
MAX_BLOCK_THREADS = 1024
REGISTERS = 65_536
REGISTER_UNIT = 256
MAX_REGISTERS = 255  # of one thread
SHARED_BYTES = 98_304  # of one multiprocessor
SHARED_UNIT = 256
MAX_BLOCK_SHARED = 98_304  # with the opt-in attribute
DEFAULT_BLOCK_SHARED = 49_152  # without it
SUBCORES = 4


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps resident on one multiprocessor; ``limit`` is what ran out first."""

    blocks: int
    warps: int
    limit: str  # "warps", "blocks", "registers" or "shared memory"

    @property
    def fraction(self) -> float:
        """Resident warps over the most that fit, 0 to 1. 0: the block does not fit at all."""
        return self.warps / MAX_WARPS


def v100_occupancy(block_threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of blocks of ``block_threads`` threads with so many registers each and so much shared memory a block.

    Shared memory is static and dynamic together. Raises ValueError for a block that no V100 can have.
    """
    if not 1 <= block_threads <= MAX_BLOCK_THREADS:
        raise ValueError(f"a block has 1 to {MAX_BLOCK_THREADS} threads, not {block_threads}")
    warps = -(-block_threads // WARP)
    limits = {
        "warps": MAX_WARPS // warps,
        "blocks": MAX_BLOCKS,
        "registers": _blocks_by_registers(warps, registers),
        "shared memory": SHARED_BYTES // _rounded(shared_bytes, SHARED_UNIT) if shared_bytes else MAX_BLOCKS,
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limits[limit] * warps, limit)


def _blocks_by_registers(warps: int, registers: int) -> int:
    """Each sub-core has a quarter of the registers and takes whole warps; a block's warps spread over all four."""
    if registers == 0:
        return MAX_BLOCKS
    warps_per_subcore = REGISTERS // SUBCORES // _rounded(registers * WARP, REGISTER_UNIT)
    return warps_per_subcore * SUBCORES // warps


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
