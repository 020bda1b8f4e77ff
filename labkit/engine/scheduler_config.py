"""The limits a scheduler keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from labkit.engine.pages import PAGE_SIZE
from labkit.errors import ConfigError
from labkit.ops.layout import QUERY_TILE


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler, all in whole numbers from 1.

    Raises ConfigError for other values, and for a prefill budget that holds no tile where prefill is sparse.

    num_pages, page_size: pages of the KV pool, tokens per page.
    max_running: sequences that hold a slot at the same time.
    max_seq_len: tokens of prompt and output together.
    prefill_tokens: prefill budget of a step in which nothing decodes.
    mixed_prefill_tokens: prefill budget of a step that also decodes; it bounds how long the decoders wait.
    sparse_threshold: prompts of so many tokens prefill sparsely, and are cut between their tiles only; None: none does.
    tile_size: rows of a tile of sparse prefill.
    """

    num_pages: int
    max_running: int
    max_seq_len: int
    page_size: int = PAGE_SIZE
    prefill_tokens: int = 4096
    mixed_prefill_tokens: int = 1024
    sparse_threshold: int | None = None
    tile_size: int = QUERY_TILE

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name == "sparse_threshold" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}.", cure="Give a whole number from 1.")
        if self.sparse_threshold is not None:
            check_budgets(self.prefill_tokens, self.mixed_prefill_tokens, self.tile_size)


def check_budgets(prefill_tokens: int, mixed_prefill_tokens: int, tile_size: int = QUERY_TILE) -> None:
    """Raises ConfigError for a budget with which sparse prefill, tile by tile, would never advance."""
    budgets = {"prefill_tokens": prefill_tokens, "mixed_prefill_tokens": mixed_prefill_tokens}
    for name, value in budgets.items():
        if value < tile_size:
            message = f"{name} is {value}, but sparse prefill works on tiles of {tile_size} tokens."
            raise ConfigError(message, cure=f"Give {tile_size} or more, or leave sparse prefill off.")
