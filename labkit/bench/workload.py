"""What a benchmark runs: context lengths times batch sizes, checked once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from labkit.engine.llm import LLM
from labkit.engine.pages import pages_for
from labkit.errors import ConfigError
from labkit.ops.layout import QUERY_TILE


@dataclass(frozen=True)
class Workload:
    """Cells of (context, batch), context varying slowest.

    context_lengths: prompt tokens of each sequence. batch_sizes: sequences that decode together.
    decode_tokens: measured tokens per sequence. repeats: measured runs per cell, after a warm-up.
    Raises ConfigError for anything but whole numbers from 1.
    """

    context_lengths: Sequence[int] = (128, 1024)
    batch_sizes: Sequence[int] = (1, 8)
    decode_tokens: int = 32
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in ("context_lengths", "batch_sizes"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise ConfigError(f"{name} is {values!r}.", cure="Give a list of whole numbers from 1.")
            for value in values:
                _count(name, value)
        _count("decode_tokens", self.decode_tokens)
        _count("repeats", self.repeats)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """All (context, batch) pairs, in the order in which they run."""
        return list(product(self.context_lengths, self.batch_sizes))


def random_prompts(vocabulary: int, context: int, batch: int) -> list[list[int]]:
    """Token ids below ``vocabulary``, [batch][context]: fresh, so that no run profits from what an earlier one left."""
    return [random.choices(range(vocabulary), k=context) for _ in range(batch)]


def tokens_per_answer(llm: LLM, context: int, batch: int, decode_tokens: int) -> int:
    """How many tokens a sequence generates at most until all have decoded ``decode_tokens`` together.

    A prefill that takes several steps lets the sequences that are ready decode in between, one token a step.
    """
    config, prompt_tokens = llm.engine.config, batch * context
    waits = batch > 1 and prompt_tokens > config.prefill_tokens  # a single sequence has no other to wait for
    early = -(-prompt_tokens // config.mixed_prefill_tokens) if waits else 0
    if waits and config.sparse and context >= config.sparse.threshold:  # cut between tiles: at most this many steps
        early = batch * -(-context // (config.mixed_prefill_tokens // QUERY_TILE * QUERY_TILE))
    return 1 + early + decode_tokens


def why_it_does_not_fit(llm: LLM, context: int, batch: int, decode_tokens: int) -> str | None:
    """The reason why this engine cannot run the cell as it is meant, all sequences at once; None if it can."""
    engine = llm.engine
    length = context + tokens_per_answer(llm, context, batch, decode_tokens)
    pages = batch * pages_for(length)
    if batch > engine.config.decode_batch_size:
        return f"A batch of {batch} exceeds decode_batch_size {engine.config.decode_batch_size}."
    if length > engine.max_seq_len:
        return f"A sequence grows to {length} tokens, max_seq_len is {engine.max_seq_len}."
    if pages > engine.num_pages:
        return f"The batch needs {pages} KV pages, the pool has {engine.num_pages}."
    return None


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} holds {value!r}.", cure="Give whole numbers from 1.")
