"""Single tiles of queries under sparse prefill, beside dense attention: what is kept, how far off, in which time.

Error: per row and head, the 2-norm of the difference from dense attention over that of dense attention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from labkit.errors import ConfigError
from labkit.ops.attention_sparse_torch import attend_kept
from labkit.ops.attention_torch import attend
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages
from labkit.ops.sparse_prefill import choose_pages
from labkit.ops.sparse_settings import SparseSettings

LEAST_MASS = 0.3  # of a row's attention: what it goes to is a needle

Result = TypeVar("Result")


class TileFigures:
    """Adds up what each measured tile shows.

    settings: the threshold among them, so that 1 lets every tile leave pages out. seconds: of dense attention, the
    choice, and attention over kept pages, in torch.
    """

    def __init__(self, settings: SparseSettings) -> None:
        self.settings = settings
        self.kept, self.visible = 0, 0  # pages, over all heads
        self.errors = list[Tensor]()
        self.seconds: dict[str, float] = {}

    @classmethod
    def sum(cls, parts: Iterable[TileFigures], settings: SparseSettings) -> TileFigures:
        """The tiles of all parts together."""
        total = cls(settings)
        for part in parts:
            total.kept, total.visible = total.kept + part.kept, total.visible + part.visible
            total.errors += part.errors
            for name, seconds in part.seconds.items():
                total.seconds[name] = total.seconds.get(name, 0.0) + seconds
        return total

    def measure(self, q: Tensor, pages: KVPages, table: Sequence[int], length: int) -> KeptPages:
        """Attend both ways with a tile, q fp32 [64, heads, D]: the last of ``length`` tokens in the pages ``table``."""
        batch, scale = PagedBatch.of([QUERY_TILE], [length], [table]), pages.head_dim**-0.5
        kept = self._timed("choice", partial(choose_pages, q, pages, batch, self.settings))
        exact = self._timed("dense", partial(attend, q, pages, batch, scale))
        ours = self._timed("kept", partial(attend_kept, q, pages, batch, kept, scale))
        self.kept += int(kept.count.sum())
        self.visible += batch.page_counts[0] * q.shape[1]
        self.errors.append((ours - exact).norm(dim=-1) / exact.norm(dim=-1))
        return kept

    def _timed(self, name: str, work: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return result

    @property
    def kept_share(self) -> float:
        """Of the pages that the tiles may see."""
        return self.kept / self.visible

    @property
    def error_mean(self) -> float:
        return float(torch.stack(self.errors).mean())

    @property
    def error_worst(self) -> float:
        return float(torch.stack(self.errors).max())


def tile_starts(context: int, tiles: int) -> list[int]:
    """Positions of ``tiles`` tiles spread over the last three quarters of ``context`` tokens, the last at its end."""
    last = context // PAGE_SIZE - 1
    return [PAGE_SIZE * (last - (last * 3 * i) // (4 * tiles)) for i in reversed(range(tiles))]


def check_tiles(context: int, tiles: int) -> None:
    """Raises ConfigError for a context that is no multiple of 64, or in which the tiles do not lie apart."""
    if tiles < 1:
        raise ConfigError(f"{tiles} tiles.", cure="Measure at least one.")
    least = 2 * PAGE_SIZE * tiles
    if context % PAGE_SIZE:
        near = max(least, -(-context // PAGE_SIZE) * PAGE_SIZE)
        raise ConfigError(f"A context of {context} tokens is no multiple of {PAGE_SIZE}.", cure=f"Use {near}.")
    if context < least:
        message = f"A context of {context} tokens does not hold {_counted(tiles)} of {QUERY_TILE}, well apart."
        fewer = context // (2 * PAGE_SIZE)
        instead = f", or at most {_counted(fewer)}" if fewer > 0 else ""
        raise ConfigError(message, cure=f"Use a multiple of {PAGE_SIZE} from {least} on{instead}.")


def _counted(tiles: int) -> str:
    return f"{tiles} tile" if tiles == 1 else f"{tiles} tiles"


def share(found: Sequence[bool]) -> float | None:
    """Of what was looked for; None: there was nothing."""
    return sum(found) / len(found) if found else None
