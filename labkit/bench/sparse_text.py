"""``labkit bench sparse -m MODEL``: a real text instead of made-up keys, and a trained model's own attention.

The text is read twice, densely and sparsely, for its perplexity. While it is read densely every layer's attention is
watched: a sample of tiles attends a second time, to the pages that sparse prefill would keep of the same queries and
keys. So shares, needles and errors are those of one layer each; what errors of many layers come to, perplexity shows.

A needle here is a page to which a row really pays 0.3 of its attention or more. Pages that are kept in any case (sink,
recent, the tile's own) are not counted: most rows pay that much to the first page, which is no merit of the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.bench.perplexity import perplexity
from labkit.bench.sparse_tiles import LEAST_MASS, TileFigures, check_tiles, share, tile_starts
from labkit.bench.texts import DEFAULT_TEXT
from labkit.bench.windows import text_tokens
from labkit.engine.llm import LLM
from labkit.errors import ConfigError
from labkit.model import layers
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages
from labkit.ops.sparse_settings import SparseSettings

CONTEXT, TILES = 8000, 8  # SmolLM2 reads 8,192 tokens, and needs room for one more
SPARSE_FROM = 8  # the engine's threshold: this part of the context is read densely

Progress = Callable[[int, int, str], None]  # done, total, what comes next
Watch = Callable[[Tensor, KVPages, PagedBatch], None]


@dataclass(frozen=True)
class SparseText:
    """One context of the text.

    tiles: of each layer with attention; layers: how many these are. kept_share: of the pages that the tiles may see,
    over all heads, and layer by layer in kept_by_layer. needles: rows that pay 0.3 to a page that is not kept in any
    case, counted for each such page, and recall: the share whose page is kept; needle_pages, recall_pages: the same
    with rows of a tile and head that look for the same page counted as one; None: there are none. error_mean,
    error_worst: relative, over rows and heads; error_by_layer: the means. dense_perplexity, sparse_perplexity: of the
    whole context; added_percent: what the second has more. seconds: as ``TileFigures`` has them.
    """

    context: int
    tiles: int
    layers: int
    kept_share: float
    kept_by_layer: list[float]
    needles: int
    recall: float | None
    needle_pages: int
    recall_pages: float | None
    error_mean: float
    error_worst: float
    error_by_layer: list[float]
    dense_perplexity: float
    sparse_perplexity: float
    added_percent: float
    seconds: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench_sparse_text(
    model: str,
    settings: SparseSettings,
    contexts: Sequence[int] = (CONTEXT,),
    tiles: int = TILES,
    timed: bool = False,
    progress: Progress | None = None,
) -> list[SparseText]:
    """Measure in torch on the CPU, in fp32. settings: the threshold is set aside, see SPARSE_FROM.

    Raises ConfigError for contexts that are no whole pages, too short for the tiles, or longer than the text or model,
    and for settings that an engine does not have.
    """
    if settings != SparseSettings(settings.mass, settings.sink, settings.recent, settings.threshold):
        raise ConfigError("An engine has no setting for needle and most.", cure="Leave them as they are.")
    for context in contexts:
        check_tiles(context, tiles)
    rows = []
    for done, context in enumerate(contexts):
        if progress:
            progress(done, len(contexts), f"{context} tokens")
        rows.append(_measure(model, settings, context, tiles, timed))
    return rows


def _measure(model: str, settings: SparseSettings, context: int, tiles: int, timed: bool) -> SparseText:
    watcher = _Watcher(tile_starts(context, tiles), replace(settings, threshold=1))
    with watching(watcher):
        dense = _perplexity(model, context, {})
    sparse = {f"sparse_{name}": getattr(settings, name) for name in ("mass", "sink", "recent")}
    sparse |= {"sparse_prefill": True, "sparse_threshold": context // SPARSE_FROM}
    return watcher.row(context, dense, _perplexity(model, context, sparse), timed)


def _perplexity(model: str, context: int, sparse: dict[str, Any]) -> float:
    """Of the beginning of the text, read at once."""
    text = DEFAULT_TEXT.read_text(encoding="utf-8")
    with LLM(model, executor="torch", dtype="float32", decode_batch_size=1, **sparse) as llm:
        _check_context(llm, text, context)
        return perplexity(llm, text, window=context, stride=context // 2, max_tokens=context).perplexity


def _check_context(llm: LLM, text: str, context: int) -> None:
    """Raises ConfigError for more tokens than the engine takes at once, or the text has."""
    begin, ids = text_tokens(llm, text, None)
    for held, what in (
        (llm.engine.max_seq_len - len(begin) - 1, "This model's engine takes"),
        (len(ids), "The text has"),
    ):
        if held < context:
            cure = f"Use at most {held // PAGE_SIZE * PAGE_SIZE}."
            raise ConfigError(f"{what} {held} tokens, not {context}.", cure=cure)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Show ``watch`` the queries, pages and batch of each attention that an engine of this process prefills with."""
    attention = layers.attention_prefill

    def watched(q: Tensor, pages: KVPages, batch: PagedBatch, **rest: Any) -> Tensor:
        watch(q, pages, batch)
        return attention(q, pages, batch, **rest)

    vars(layers)["attention_prefill"] = watched
    try:
        yield
    finally:
        vars(layers)["attention_prefill"] = attention


class _Watcher:
    """Measures the tiles at ``starts`` in every layer; layers are told apart by their pages."""

    def __init__(self, starts: list[int], settings: SparseSettings) -> None:
        self.starts, self.settings = starts, settings
        self.layers: dict[int, TileFigures] = {}
        self.rows, self.pages = list[bool](), list[bool]()  # of the needles: found or not

    def __call__(self, q: Tensor, pages: KVPages, batch: PagedBatch) -> None:
        figures = self.layers.setdefault(id(pages), TileFigures(self.settings))
        [(first, behind, length)], table = batch.spans, batch.table[0].tolist()
        for start in self.starts:
            row = first + start - (length - (behind - first))
            if first <= row <= behind - QUERY_TILE:
                tile, end = q[row : row + QUERY_TILE].float(), start + QUERY_TILE
                self._count(tile, pages, table[: end // PAGE_SIZE], figures.measure(tile, pages, table, end))

    def _count(self, q: Tensor, pages: KVPages, table: list[int], chosen: KeptPages) -> None:
        """Needles of one tile: which there are, and which of them were kept."""
        own = len(table) - 1
        wanted = page_shares(q, pages, table) >= LEAST_MASS
        wanted[..., : self.settings.sink] = False
        wanted[..., max(0, own - self.settings.recent) :] = False
        kept = torch.zeros(q.shape[1], len(table), dtype=torch.bool)
        for head, number in enumerate(chosen.count[0].tolist()):
            kept[head, chosen.index[0, head, :number].long()] = True
        self.rows += kept[:, None].expand_as(wanted)[wanted].tolist()
        self.pages += kept[wanted.any(1)].tolist()

    def row(self, context: int, dense: float, sparse: float, timed: bool) -> SparseText:
        total = TileFigures.sum(self.layers.values(), self.settings)
        return SparseText(
            context=context,
            tiles=len(self.starts),
            layers=len(self.layers),
            kept_share=total.kept_share,
            kept_by_layer=[layer.kept_share for layer in self.layers.values()],
            needles=len(self.rows),
            recall=share(self.rows),
            needle_pages=len(self.pages),
            recall_pages=share(self.pages),
            error_mean=total.error_mean,
            error_worst=total.error_worst,
            error_by_layer=[layer.error_mean for layer in self.layers.values()],
            dense_perplexity=dense,
            sparse_perplexity=sparse,
            added_percent=100 * (sparse / dense - 1),
            seconds=total.seconds if timed else None,
        )


def page_shares(q: Tensor, pages: KVPages, table: list[int]) -> Tensor:
    """How much of its attention each row of a tile pays to each page: fp32 [heads, 64, P].

    q: fp32 [64, heads, D], the last tokens of the pages ``table``, all of which are full.
    """
    k = pages.k.gather(torch.tensor(table))
    logits = torch.einsum("rkgd,kcd->kgrc", q.unflatten(1, (len(k), -1)), k) * pages.head_dim**-0.5
    future = torch.arange(k.shape[1]) > k.shape[1] - len(q) + torch.arange(len(q))[:, None]
    return logits.masked_fill(future, -torch.inf).softmax(-1).unflatten(-1, (-1, PAGE_SIZE)).sum(-1).flatten(0, 1)
