"""Checks of chapter 17: latencies from raw token times, and a benchmark that lies."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from labkit.engine.outputs import RequestMetrics

Latencies = tuple[float, float | None, list[float]]


def random_metrics(draw: random.Random, tokens: int) -> RequestMetrics:
    """One answer of ``tokens`` tokens with made-up times: a wait, a prefill, then uneven gaps. Times in seconds."""
    arrival = draw.uniform(10, 1000)
    now = arrival + draw.uniform(0.1, 5)
    times = [now]
    for _ in range(tokens - 1):
        now += draw.choice((0.02, 0.03, 0.4))
        times.append(now)
    return RequestMetrics(arrival=arrival, first_scheduled=arrival, finished=times[-1] + 0.001, token_times=times)


def check_latencies(latencies: Callable[[float, list[float]], Latencies], seed: int | None = None) -> str:
    """Raise AssertionError with a hint unless ``latencies(arrival, token_times)`` is (TTFT, TPOT, list of ITLs).

    An answer of one token has no TPOT: None; and no ITL: []. seed: of the drawn answers; None draws one.
    """
    draw = random.Random(seed)
    for tokens in (1, 2, 5, *(draw.randint(3, 40) for _ in range(20))):
        metrics = random_metrics(draw, tokens)
        ttft, tpot, itl = latencies(metrics.arrival, list(metrics.token_times))
        _check_ttft(ttft, metrics)
        _check_tpot(tpot, metrics)
        _check_itl(itl, metrics)
    return "Right: TTFT, TPOT and ITL agree with the engine's own figures."


def _check_ttft(ttft: float, metrics: RequestMetrics) -> None:
    if _same(ttft, metrics.token_times[0]):
        raise AssertionError("That TTFT is a time of day. It counts from the arrival of the request.")
    assert _same(ttft, metrics.ttft), f"TTFT should be {metrics.ttft:.3f} s, you have {ttft:.3f} s."


def _check_tpot(tpot: float | None, metrics: RequestMetrics) -> None:
    times = metrics.token_times
    if len(times) == 1:
        assert tpot is None, "An answer of one token has no time per token after the first: return None."
        return
    assert tpot is not None, "An answer of several tokens has a TPOT."
    if _same(tpot, (times[-1] - metrics.arrival) / len(times)):
        raise AssertionError("You divide the whole time by all tokens: the prefill counts as decoding.")
    if _same(tpot, (times[-1] - times[0]) / len(times)):
        raise AssertionError("Between n tokens there are n - 1 gaps.")
    assert _same(tpot, metrics.tpot), f"TPOT should be {metrics.tpot:.4f} s, you have {tpot:.4f} s."


def _check_itl(itl: Sequence[float], metrics: RequestMetrics) -> None:
    gaps = len(metrics.token_times) - 1
    assert len(itl) == gaps, f"{gaps + 1} tokens have {gaps} gaps between them, you list {len(itl)}."
    assert _same(sum(itl), (metrics.tpot or 0.0) * gaps), "The gaps must add up to last token - first token."
    assert all(gap > 0 for gap in itl), "A later token comes later: take times[i + 1] - times[i]."


def check_verdict(guilty: dict[str, bool]) -> str:
    """Raise AssertionError with a hint unless the reader found which of the three reports cannot be true."""
    assert set(guilty) == set(VERDICTS), f"Judge all of {', '.join(VERDICTS)}."
    wrong = [name for name, (verdict, _) in VERDICTS.items() if guilty[name] != verdict]
    assert not wrong, f"Look again at {wrong[0]}. {VERDICTS[wrong[0]][1]}"
    return "Right: a rate above its ceiling, and a TPOT with the prefill in it."


VERDICTS = {
    "A": (True, "How many tokens per second does the memory bandwidth allow at most?"),
    "B": (True, "Why should a longer prompt slow down every later token by just this much? Try (E2EL - TTFT)."),
    "C": (False, "Its decode rate is below the ceiling, and TTFT + TPOT * (tokens - 1) gives its E2EL."),
}


def _same(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
