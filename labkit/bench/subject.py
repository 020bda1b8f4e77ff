"""Who is measured: the engine, or a peer, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from labkit.bench.ceiling import Ceiling, decode_ceiling
from labkit.bench.results import dtype_name
from labkit.bench.timing import ShouldStop, Timing, time_labkit
from labkit.bench.workload import why_it_does_not_fit
from labkit.engine.llm import LLM


class Subject(Protocol):
    """Something that can be timed. ``about``: the fields of its rows that name it; ``vocabulary``: valid token ids."""

    @property
    def about(self) -> dict[str, Any]: ...

    @property
    def vocabulary(self) -> int: ...

    def problem(self, context: int, batch: int, decode_tokens: int) -> str | None:
        """Why the cell cannot be run; None if it can."""

    def ceiling(self, context: int, batch: int, bandwidth: float) -> Ceiling | None:
        """Its speed limit, where it is known."""

    def time(
        self, prompts: Sequence[Sequence[int]], decode_tokens: int, should_stop: ShouldStop | None = None
    ) -> Timing:
        """One run. Raises BenchStopped, or a LabkitError that becomes the row's ``error``."""
        ...


class LabkitSubject:
    """A loaded engine."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        config = llm.engine.config
        self.device = config.placement.device
        packed = config.quantize_leftovers
        self.about: dict[str, Any] = {
            "system": "labkit" if packed == "none" else f"labkit, leftovers {packed}",
            "model": str(config.model),
            "dtype": dtype_name(config.torch_dtype),
            "kv_cache_dtype": config.kv_format.label,
        }
        self.vocabulary = llm.engine.num_valid

    def problem(self, context: int, batch: int, decode_tokens: int) -> str | None:
        return why_it_does_not_fit(self.llm, context, batch, decode_tokens)

    def ceiling(self, context: int, batch: int, bandwidth: float) -> Ceiling:
        return decode_ceiling(self.llm, context, batch, bandwidth)

    def time(
        self, prompts: Sequence[Sequence[int]], decode_tokens: int, should_stop: ShouldStop | None = None
    ) -> Timing:
        return time_labkit(self.llm, prompts, decode_tokens, should_stop)
