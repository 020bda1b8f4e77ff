"""One answer in the making: its sequence, its text and what the sampler must know."""

from __future__ import annotations

import time
from dataclasses import dataclass

from labkit.engine.outputs import Completion, RequestMetrics
from labkit.engine.sampler import SampledToken, SampleRequest
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Sequence
from labkit.engine.text_stream import TextStream
from labkit.errors import LabkitError


@dataclass(frozen=True)
class Update:
    """News of one request after a step: the token it got, the text now safe to show, whether it has ended."""

    request: Request
    token: SampledToken | None
    text: str
    finished: bool


class Request:
    """Everything about one answer. A prompt with n > 1 makes n of them.

    stream: turns tokens into text; None for a model without a tokenizer.
    """

    def __init__(
        self,
        seq: Sequence,
        params: SamplingParams,
        sampling: SampleRequest,
        eos_ids: frozenset[int],
        stream: TextStream | None,
    ) -> None:
        self.seq, self.params, self.sampling, self.stream = seq, params, sampling, stream
        self.metrics = RequestMetrics(arrival=time.perf_counter())
        self.tokens: list[SampledToken] = []
        self.stop_reason: str | int | None = None
        self.error: LabkitError | None = None
        self._eos_ids = eos_ids

    @property
    def id(self) -> int:
        return self.seq.seq_id

    @property
    def finished(self) -> bool:
        """True once nothing about it changes any more, its text included."""
        return self.metrics.finished is not None

    @property
    def text(self) -> str:
        """Text released so far."""
        return self.stream.text if self.stream else ""

    def take(self, token: SampledToken) -> tuple[str, bool]:
        """Note the next token; returns the text now safe to show and whether the answer ends with it."""
        self.tokens.append(token)
        self.metrics.token_times.append(time.perf_counter())
        if self._ends_with(token.token):
            return "", True
        text = self.stream.push(token.token) if self.stream else ""
        if self.stream and self.stream.stopped:
            self.stop_reason = self.stream.stop_reason
            return text, True
        return text, False

    def close(self) -> str:
        """The answer is over: returns the text that was still held back."""
        tail = self.stream.finish() if self.stream else ""
        self.metrics.preemptions = self.seq.num_preemptions
        self.metrics.finished = time.perf_counter()  # last: other threads wait for it
        return tail

    def completion(self) -> Completion:
        """The answer as the user sees it."""
        wants_logprobs = self.params.logprobs is not None
        return Completion(
            index=self.sampling.choice,
            text=self.text,
            token_ids=list(self.seq.output_ids),
            finish_reason=self.seq.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=list(self.tokens) if wants_logprobs else None,
            metrics=self.metrics,
            error=self.error,
        )

    def _ends_with(self, token: int) -> bool:
        if len(self.tokens) <= self.params.min_tokens or token not in self.sampling.end_ids:
            return False
        if token not in self._eos_ids or self.params.ignore_eos:
            self.stop_reason = token
        return True
