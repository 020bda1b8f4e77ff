"""The limits a scheduler keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from labkit.engine.pages import PAGE_SIZE
from labkit.errors import ConfigError


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler, all in whole numbers from 1.

    num_pages, page_size: pages of the KV pool, tokens per page.
    max_running: sequences that hold a slot at the same time.
    max_seq_len: tokens of prompt and output together.
    prefill_tokens: prefill budget of a step in which nothing decodes.
    mixed_prefill_tokens: prefill budget of a step that also decodes; it bounds how long the decoders wait.
    """

    num_pages: int
    max_running: int
    max_seq_len: int
    page_size: int = PAGE_SIZE
    prefill_tokens: int = 4096
    mixed_prefill_tokens: int = 1024

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}.", cure="Give a whole number from 1.")
