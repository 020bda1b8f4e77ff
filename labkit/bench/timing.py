"""One timed run: prefill until every sequence has its first token, then decode all of them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from labkit.bench.results import Spread
from labkit.bench.workload import tokens_per_answer
from labkit.engine.core import Engine
from labkit.engine.llm import LLM
from labkit.engine.request import Request
from labkit.engine.sampling_params import SamplingParams

ShouldStop = Callable[[], bool]


class BenchStopped(Exception):
    """The caller asked to stop; what was measured so far stands."""


@dataclass(frozen=True)
class Timing:
    """Seconds: until all first tokens; of the decode steps after that; TTFT and TPOT, means over the batch."""

    prefill_s: float
    decode_s: float
    ttft_s: float
    tpot_s: float


def time_labkit(
    llm: LLM, prompts: Sequence[Sequence[int]], decode_tokens: int, should_stop: ShouldStop | None = None
) -> Timing:
    """Run the prompts greedily, ``decode_tokens`` steps beyond the last first token; the requests are then dropped.

    Raises BenchStopped between two steps if ``should_stop`` says so, and the error of a request that fails.
    """
    engine = llm.engine
    limit = tokens_per_answer(llm, len(prompts[0]), len(prompts), decode_tokens)
    params = SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True)
    requests: list[Request] = []
    start = time.perf_counter()
    try:
        for ids in prompts:
            requests += engine.submit(ids, params)
        while not all(request.tokens for request in requests):
            _step(engine, requests, should_stop)
        all_started = time.perf_counter()
        for _ in range(decode_tokens):
            _step(engine, requests, should_stop)
        end = time.perf_counter()
    finally:
        for request in requests:
            engine.abort(request)
    return Timing(all_started - start, end - all_started, *_latencies(requests))


def spreads(timings: Sequence[Timing], context: int, batch: int, decode_tokens: int) -> dict[str, Spread]:
    """The figures of a row from its repeats, by the names of BenchRow's fields."""
    return {
        "prefill_tokens_per_s": Spread.of(batch * context / t.prefill_s for t in timings),
        "decode_tokens_per_s": Spread.of(batch * decode_tokens / t.decode_s for t in timings),
        "ttft_s": Spread.of(t.ttft_s for t in timings),
        "tpot_s": Spread.of(t.tpot_s for t in timings),
    }


def _step(engine: Engine, requests: list[Request], should_stop: ShouldStop | None) -> None:
    if should_stop is not None and should_stop():
        raise BenchStopped
    engine.step()
    for request in requests:
        if request.error:
            raise request.error


def _latencies(requests: list[Request]) -> tuple[float, float]:
    metrics = [request.metrics for request in requests]
    return fmean(m.ttft for m in metrics if m.ttft is not None), fmean(m.tpot for m in metrics if m.tpot is not None)
