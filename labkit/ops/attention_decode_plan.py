"""How a launch of decode attention is divided: queries into slices, the context into splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

QUERY_CLASSES = (1, 2, 3, 4, 6, 8)  # queries that a kernel is compiled for; fewer may be given
WARPS = 4  # of a block
FAN = 16  # records that one block adds up; as merge.cuh says
MOST_SPLITS = FAN * FAN
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


@lru_cache(maxsize=256)
def splits(page_counts: tuple[int, ...], slices: int, processors: int, resident: int) -> int:
    """Blocks that share the context of the longest sequence; shorter ones have blocks of as many pages, but fewer.

    Modelled in rounds, in which the warps of a block take two pages. A block takes its rounds and one more, in which
    it begins and leaves its part; and adding up takes one, or one and a half from more than FAN parts. Blocks that all
    have a place run at a time. Others share the places evenly, but for half a block in the end.

    page_counts: of the sequences, or of the buckets that a CUDA graph is captured for. slices: of one sequence, over
    all KV heads. resident: blocks that a multiprocessor holds at a time.
    """
    pages, longest = np.asarray(page_counts), max(page_counts)
    cuts = np.arange(1, min(longest, MOST_SPLITS) + 1)
    span = np.flip(np.unique(-(-longest // cuts)))  # pages of a block: of equally good ones, the most
    whole, rest = np.divmod(pages[:, None], span)
    blocks = slices * (whole + (rest > 0)).sum(0)
    each = _rounds(span) + 1
    work = slices * (whole * each + np.where(rest > 0, _rounds(rest) + 1, 0)).sum(0)
    places = processors * resident
    parts = -(-longest // span)
    cost = np.where(blocks <= places, each, work / places + each / 2) + (parts > 1) + 0.5 * (parts > FAN)
    return int(parts[cost.argmin()])


def _rounds(pages: IntArray) -> IntArray:
    return -(-pages // 2)


def resident_blocks(rung: str, head_dim: int, k_bits: int, queries: int) -> int:
    """Blocks of a rung on one multiprocessor of a V100: what its launch bounds make room for."""
    large = {"4_wide": queries > (2 if k_bits == 16 else 3), "5_tensor_cores": head_dim > 128}
    return 2 if large.get(rung, False) else 3


def record_floats(queries: int, head_dim: int) -> int:
    """fp32 numbers that a split leaves: sums over v, then the largest exponent and the sum of each query."""
    return queries * head_dim + -(-2 * queries // 4) * 4


def counters(split_count: int) -> int:
    """Of arrived blocks, for each slice: one for every FAN splits, and one for those together."""
    return 1 + -(-split_count // FAN)
