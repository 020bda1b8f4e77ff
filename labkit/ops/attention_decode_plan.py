"""How a launch of decode attention is divided: queries into slices, the context into splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from labkit.ops.layout import PAGE_SIZE

QUERY_CLASSES = (1, 2, 3, 4, 6, 8)  # queries that a kernel is compiled for; fewer may be given
WARPS = 4  # of a block
V100_PROCESSORS = 80
FAN = 16  # records that one block adds up; as merge.cuh says
MOST_SPLITS = FAN * FAN
FEWEST_PAGES = 4  # of a split: below that, adding up the splits costs more than they save
SPLIT_RUNGS = ("3_split_kv", "4_wide", "5_tensor_cores")


@dataclass(frozen=True)
class Slices:
    """The queries of a sequence that share a KV head, rows times group, as ``count`` slices of up to ``queries``."""

    count: int
    queries: int

    @classmethod
    def of(cls, rows: int, group: int, most: int) -> Slices:
        """As few slices of up to ``most`` as can be, even ones: 12 queries are two of 6, not one of 8 and one of 4."""
        total = rows * group
        even = -(-total // -(-total // most))
        queries = next(size for size in QUERY_CLASSES if size >= even)
        return cls(-(-total // queries), queries)


def most_queries(rung: str, k_bits: int) -> int:
    """Of a slice. Those of the wide rung with fp16 keys are fp32 numbers in registers, which are enough for 6."""
    return 6 if rung == "4_wide" and k_bits == 16 else QUERY_CLASSES[-1]


def splits(longest: int, sequences: int, slices: int, processors: int, resident: int) -> int:
    """Blocks that share the context of each sequence: so many that all together just fill the GPU once.

    longest: tokens of the longest sequence, or of the bucket that a CUDA graph is captured for: the kernels divide
    whatever a sequence holds over so many blocks, and those without tokens do nothing. slices: of one sequence, over
    all KV heads. resident: blocks that a multiprocessor holds at a time.
    """
    pages = -(-longest // PAGE_SIZE)
    wanted = processors * resident // (sequences * slices)
    return max(1, min(wanted, pages // FEWEST_PAGES, MOST_SPLITS))


def resident_blocks(rung: str, head_dim: int, queries: int) -> int:
    """Blocks of a rung on one multiprocessor of a V100: what its launch bounds make room for."""
    large = {"4_wide": queries > 3, "5_tensor_cores": head_dim > 128}
    return 2 if large.get(rung, False) else 3


def record_floats(queries: int, head_dim: int) -> int:
    """fp32 numbers that a split leaves: sums over v, then the largest exponent and the sum of each query."""
    return queries * head_dim + -(-2 * queries // 4) * 4


def counters(split_count: int) -> int:
    """Of arrived blocks, for each slice: one for every FAN splits, and one for those together."""
    return 1 + -(-split_count // FAN)


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; on the simulator those of a V100."""
    return _processors(device.index or 0) if device.type == "cuda" else V100_PROCESSORS


def is_v100(device: torch.device) -> bool:
    """Whether this mma.m8n8k4 is an instruction of the GPU; newer ones emulate it. The simulator stands for a V100."""
    return device.type != "cuda" or _capability(device.index or 0) == (7, 0)


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
