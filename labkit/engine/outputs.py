"""What the engine gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.engine.sampler import SampledToken
from labkit.engine.sequence import FinishReason
from labkit.errors import LabkitError


@dataclass
class RequestMetrics:
    """Moments of one answer, in seconds of time.perf_counter().

    token_times: when each token came; the first of them ends the prefill.
    """

    arrival: float
    first_scheduled: float | None = None
    finished: float | None = None
    token_times: list[float] = field(default_factory=list)
    preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token: arrival to first token, in seconds."""
        return self.token_times[0] - self.arrival if self.token_times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: (last - first) / (tokens - 1), in seconds."""
        times = self.token_times
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


@dataclass
class Completion:
    """One answer to a prompt.

    text: without the stop string; token_ids: the generated tokens, the end token included.
    stop_reason: the stop string or stop token id that ended it, None for the model's own end token or a limit.
    logprobs: one entry per token if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    logprobs: list[SampledToken] | None
    metrics: RequestMetrics
    error: LabkitError | None = None


@dataclass
class RequestOutput:
    """All answers to one prompt, in the order of their index.

    error: why the request was refused or failed; its answers are then empty or cut off.
    """

    prompt: str | None
    prompt_ids: list[int]
    completions: list[Completion]
    error: LabkitError | None = None

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.completions[0].text if self.completions else ""

    @property
    def token_ids(self) -> list[int]:
        """The first answer's tokens."""
        return self.completions[0].token_ids if self.completions else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first answer ended."""
        return self.completions[0].finish_reason if self.completions else FinishReason.ERROR
