"""transformers as a subject of the benchmark: greedy ``generate`` with its KV cache, no gradients."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from labkit.bench.ceiling import Ceiling
from labkit.bench.timing import BenchStopped, ShouldStop, Timing
from labkit.errors import LabkitError


class UnusableTimingError(LabkitError, RuntimeError):
    """The peer did not generate what was asked for."""


class TransformersSubject:
    """A transformers model. It runs in this process, hence on as many threads as labkit."""

    def __init__(self, model: Any, name: str, dtype: str) -> None:
        self.model = model
        self.about: dict[str, Any] = {
            "system": "transformers",
            "model": name,
            "dtype": dtype,
            "kv_cache_dtype": dtype,
        }
        self.vocabulary = int(model.config.get_text_config().vocab_size)

    def problem(self, context: int, batch: int, decode_tokens: int) -> str | None:
        limit = self.model.config.get_text_config().max_position_embeddings
        length = context + 1 + decode_tokens
        return f"A sequence grows to {length} tokens, the model has {limit} positions." if length > limit else None

    def ceiling(self, context: int, batch: int, bandwidth: float) -> Ceiling | None:
        return None

    def time(
        self, prompts: Sequence[Sequence[int]], decode_tokens: int, should_stop: ShouldStop | None = None
    ) -> Timing:
        """One generation, the clock read at each token: the first ends the prefill, decoding goes on from there."""
        if should_stop is not None and should_stop():
            raise BenchStopped
        start, ticks = time.perf_counter(), self._generate(torch.tensor(prompts), 1 + decode_tokens)
        prefill, decode = ticks[0] - start, ticks[-1] - ticks[0]
        return Timing(prefill, decode, ttft_s=prefill, tpot_s=decode / decode_tokens)

    @torch.inference_mode()
    def _generate(self, ids: torch.Tensor, new_tokens: int) -> list[float]:
        """The moments of exactly ``new_tokens`` tokens per sequence; without an end token nothing stops earlier."""
        self.model.generation_config.eos_token_id = None
        ticks: list[float] = []

        def never_stop(tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            ticks.append(time.perf_counter())
            return torch.zeros(len(tokens), dtype=torch.bool)

        self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            stopping_criteria=[never_stop],
        )
        if len(ticks) != new_tokens:
            raise UnusableTimingError("transformers stopped early.", cure="Report this with the model's name.")
        return ticks
