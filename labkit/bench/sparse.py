"""``labkit bench sparse``: what sparse prefill leaves out, what that costs, and whether it still finds a needle.

Synthetic keys (labkit/bench/sparse_data.py), a sample of tiles spread over the context, every page of which a tile may
see counted. The threshold of context is set aside: they attend sparsely wherever they stand. Kept share, needles and
errors are measured; the cost is a count of multiplications and additions:

    dense      4 x 64 n D for a tile and head: q k and p v over n tokens of context
    estimate   2 x 8 n D for the sampled rows, 2 x 64 (n / 8) D for the sampled keys; the sampling itself, 20 n D for
               each KV head, is shared by its query heads and by the tiles of a chunk (here of 4,096 tokens)
    kept       dense x the kept share
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.bench.sparse_data import Needle, SparseData, needle_mass, synthetic
from labkit.bench.sparse_tiles import LEAST_MASS, TileFigures, check_tiles, share
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.ops.sparse_prefill import SAMPLED_ROWS
from labkit.ops.sparse_scores import SAMPLED_KEYS
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat

CONTEXTS = (8192, 16384, 32768, 65536)
SEEDS = (0, 1, 2)
HEADS, DIM = 6, 256  # of one KV head of Qwen3.5-27B
TILES = 16
CHUNK_TILES = 64

Progress = Callable[[int, int, str], None]  # done, total, what comes next


@dataclass(frozen=True)
class SparseRow:
    """One context and seed.

    kept_share: of the pages that the tiles may see, over all heads. recall, recall_row, recall_key: share of the
    needles whose page is kept, of all and by kind; None: there are none. error_mean, error_worst: relative, over rows
    and heads.
    estimate_cost, cost: operations of the estimate alone and with attention, as a share of dense attention's.
    seconds: of dense attention, the choice, and attention over kept pages in torch, where they were asked for;
    the choice with the sampling of keys, which each tile here does for itself, a chunk of 4,096 tokens once for 64.
    """

    context: int
    seed: int
    tiles: int
    kept_share: float
    needles: int
    recall: float | None
    recall_row: float | None
    recall_key: float | None
    error_mean: float
    error_worst: float
    estimate_cost: float
    cost: float
    seconds: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench_sparse(
    settings: SparseSettings,
    contexts: Sequence[int] = CONTEXTS,
    seeds: Sequence[int] = SEEDS,
    tiles: int = TILES,
    timed: bool = False,
    progress: Progress | None = None,
) -> list[SparseRow]:
    """Measure in torch on the CPU. Raises ConfigError for contexts of no whole pages, or too short for the tiles."""
    for context in contexts:
        check_tiles(context, tiles)
    everywhere = replace(settings, threshold=1)
    cells = [(context, seed) for context in contexts for seed in seeds]
    rows = []
    for done, (context, seed) in enumerate(cells):
        if progress:
            progress(done, len(cells), f"{context} tokens, seed {seed}")
        rows.append(_measure(synthetic(context, tiles, HEADS, DIM, seed), seed, everywhere, timed))
    return rows


def estimate_cost() -> float:
    """Operations of the estimate as a share of dense attention's."""
    dense = 4 * QUERY_TILE
    scores = 2 * SAMPLED_ROWS + 2 * QUERY_TILE * SAMPLED_KEYS / PAGE_SIZE
    sampling = (4 + 2 * SAMPLED_KEYS) / (HEADS * CHUNK_TILES)  # lengths less the mean, and a product with each sample
    return (scores + sampling) / dense


def _measure(data: SparseData, seed: int, settings: SparseSettings, timed: bool) -> SparseRow:
    pages, figures = _pages(data), TileFigures(settings)
    found = dict[str, list[bool]]({"row": [], "key": []})
    for tile, start in enumerate(data.starts):
        length = start + QUERY_TILE
        kept = figures.measure(data.queries[tile], pages, range(1, length // PAGE_SIZE + 1), length)
        for needle in data.needles:
            if needle.tile == tile and needle_mass(data, needle) >= LEAST_MASS:
                found[needle.kind].append(_holds(kept, needle))
    return _row(data, seed, figures, found, timed)


def _holds(kept: KeptPages, needle: Needle) -> bool:
    places = kept.index[0, needle.head, : int(kept.count[0, needle.head])]
    return bool((places == needle.position // PAGE_SIZE).any())


def _row(data: SparseData, seed: int, figures: TileFigures, found: dict[str, list[bool]], timed: bool) -> SparseRow:
    everything = [*found["row"], *found["key"]]
    return SparseRow(
        context=len(data.keys),
        seed=seed,
        tiles=len(data.starts),
        kept_share=figures.kept_share,
        needles=len(everything),
        recall=share(everything),
        recall_row=share(found["row"]),
        recall_key=share(found["key"]),
        error_mean=figures.error_mean,
        error_worst=figures.error_worst,
        estimate_cost=estimate_cost(),
        cost=estimate_cost() + figures.kept_share,
        seconds=figures.seconds if timed else None,
    )


def _pages(data: SparseData) -> KVPages:
    """Keys and values in pages 1, 2, ... of a pool, in fp32."""
    k, v = (PageStore(_padded(x).view(-1, 1, PAGE_SIZE, x.shape[1]), None, 16) for x in (data.keys, data.values))
    return KVPages(k, v, KVFormat(torch.float32), data.keys.shape[1])


def _padded(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros(PAGE_SIZE, x.shape[1]), x))
