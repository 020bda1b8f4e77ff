"""``labkit bench sparse``: what sparse prefill leaves out, what that costs, and whether it still finds a needle.

Synthetic keys (labkit/bench/sparse_data.py), a sample of tiles spread over the context, every page of which a tile may
see counted. The threshold of context is set aside: they attend sparsely wherever they stand. Kept share, needles and
errors are measured; the cost is a count of multiplications and additions:

    dense      4 x 64 n D for a tile and head: q k and p v over n tokens of context
    estimate   2 x 8 n D for the sampled rows, 2 x 64 (n / 8) D for the sampled keys; the sampling itself, 20 n D for
               each KV head, is shared by its query heads and by the tiles of a chunk (here of 4,096 tokens)
    kept       dense x the kept share

Error: per row and head, the 2-norm of the difference from dense attention over that of dense attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from labkit.bench.sparse_data import Needle, SparseData, needle_mass, synthetic
from labkit.errors import ConfigError
from labkit.ops.attention_sparse_torch import attend_kept
from labkit.ops.attention_torch import attend
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.ops.sparse_prefill import SAMPLED_ROWS, choose_pages
from labkit.ops.sparse_scores import SAMPLED_KEYS
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import KVFormat

CONTEXTS = (8192, 16384, 32768, 65536)
SEEDS = (0, 1, 2)
HEADS, DIM = 6, 256  # of one KV head of Qwen3.5-27B
TILES = 16
LEAST_MASS = 0.3  # of a needle that counts; they are planted with a little more
CHUNK_TILES = 64

Result = TypeVar("Result")
Progress = Callable[[int, int, str], None]  # done, total, what comes next


@dataclass(frozen=True)
class SparseRow:
    """One context and seed.

    kept_share: of the pages that the tiles may see, over all heads. recall, recall_row, recall_key: share of the
    needles whose page is kept, of all and by kind. error_mean, error_worst: relative, over rows and heads.
    estimate_cost, cost: operations of the estimate alone and with attention, as a share of dense attention's.
    seconds: of dense attention, the choice, and attention over kept pages in torch, where they were asked for;
    the choice with the sampling of keys, which each tile here does for itself, a chunk of 4,096 tokens once for 64.
    """

    context: int
    seed: int
    tiles: int
    kept_share: float
    needles: int
    recall: float
    recall_row: float
    recall_key: float
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
    """Measure in torch on the CPU. Raises ConfigError for contexts of no whole pages or fewer pages than tiles."""
    for context in contexts:
        if context % PAGE_SIZE or context < 2 * PAGE_SIZE * tiles or tiles < 1:
            message = f"A context of {context} tokens does not hold {tiles} tiles of {PAGE_SIZE}, well apart."
            raise ConfigError(message, cure=f"Use a multiple of {PAGE_SIZE} from {2 * PAGE_SIZE * max(tiles, 1)} on.")
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
    pages, clock = _pages(data), _Clock()
    shares, errors, found = list[Tensor](), list[Tensor](), dict[str, list[bool]]({"row": [], "key": []})
    for tile, start in enumerate(data.starts):
        q, length = data.queries[tile], start + QUERY_TILE
        batch = PagedBatch.of([QUERY_TILE], [length], [list(range(1, length // PAGE_SIZE + 1))])
        kept = clock.run("choice", partial(choose_pages, q, pages, batch, settings))
        exact = clock.run("dense", partial(attend, q, pages, batch, data.scale))
        ours = clock.run("kept", partial(attend_kept, q, pages, batch, kept, data.scale))
        shares.append(kept.count[0] / (length // PAGE_SIZE))
        errors.append((ours - exact).norm(dim=-1) / exact.norm(dim=-1))
        for needle in data.needles:
            if needle.tile == tile and needle_mass(data, needle) >= LEAST_MASS:
                found[needle.kind].append(_holds(kept, needle))
    return _row(data, seed, torch.stack(shares), torch.stack(errors), found, clock.seconds if timed else None)


def _holds(kept: KeptPages, needle: Needle) -> bool:
    places = kept.index[0, needle.head, : int(kept.count[0, needle.head])]
    return bool((places == needle.position // PAGE_SIZE).any())


def _row(
    data: SparseData,
    seed: int,
    shares: Tensor,
    errors: Tensor,
    found: dict[str, list[bool]],
    seconds: dict[str, float] | None,
) -> SparseRow:
    pages = torch.tensor(data.starts)[:, None] / PAGE_SIZE + 1
    kept = float((shares * pages).sum() / (pages * shares.shape[1]).sum())
    everything = [*found["row"], *found["key"]]
    return SparseRow(
        context=len(data.keys),
        seed=seed,
        tiles=len(data.starts),
        kept_share=kept,
        needles=len(everything),
        recall=_share(everything),
        recall_row=_share(found["row"]),
        recall_key=_share(found["key"]),
        error_mean=float(errors.mean()),
        error_worst=float(errors.max()),
        estimate_cost=estimate_cost(),
        cost=estimate_cost() + kept,
        seconds=seconds,
    )


def _share(found: list[bool]) -> float:
    return sum(found) / len(found) if found else float("nan")


def _pages(data: SparseData) -> KVPages:
    """Keys and values in pages 1, 2, ... of a pool, in fp32."""
    k, v = (PageStore(_padded(x).view(-1, 1, PAGE_SIZE, x.shape[1]), None, 16) for x in (data.keys, data.values))
    return KVPages(k, v, KVFormat(torch.float32), data.keys.shape[1])


def _padded(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros(PAGE_SIZE, x.shape[1]), x))


class _Clock:
    """Seconds that each kind of work took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, work: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return result
