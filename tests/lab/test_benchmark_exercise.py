"""The checks of chapter 17 accept what is right and give the hint that belongs to each mistake."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from labkit.lab.exercises.benchmark import check_latencies, check_verdict, random_metrics

Times = list[float]


def _gaps(times: Times) -> Times:
    return [b - a for a, b in pairwise(times)]


def _tpot(times: Times) -> float | None:
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def right(arrival: float, times: Times) -> Any:
    return times[0] - arrival, _tpot(times), _gaps(times)


WRONG: dict[str, Callable[[float, Times], Any]] = {
    "time of day": lambda arrival, times: (times[0], _tpot(times), _gaps(times)),
    "TTFT should be": lambda arrival, times: (times[-1] - arrival + 1, _tpot(times), _gaps(times)),
    "return None": lambda arrival, times: (times[0] - arrival, _tpot(times) or 0.0, _gaps(times)),
    "prefill counts as decoding": lambda arrival, times: (
        times[0] - arrival,
        (times[-1] - arrival) / len(times) if len(times) > 1 else None,
        _gaps(times),
    ),
    "n - 1 gaps": lambda arrival, times: (
        times[0] - arrival,
        (times[-1] - times[0]) / len(times) if len(times) > 1 else None,
        _gaps(times),
    ),
    "several tokens has a TPOT": lambda arrival, times: (times[0] - arrival, None, _gaps(times)),
    "gaps between them": lambda arrival, times: (times[0] - arrival, _tpot(times), []),
    "must add up": lambda arrival, times: (times[0] - arrival, _tpot(times), [0.5 * gap for gap in _gaps(times)]),
    "later token comes later": lambda arrival, times: (
        times[0] - arrival,
        _tpot(times),
        [-1.0, times[-1] - times[0] + 1.0, *[0.0] * (len(times) - 3)] if len(times) > 2 else _gaps(times),
    ),
}


def test_the_right_latencies_pass() -> None:
    assert check_latencies(right).startswith("Right")


@pytest.mark.parametrize("hint", WRONG)
def test_each_mistake_gets_its_hint(hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_latencies(WRONG[hint])


def test_drawn_answers_obey_the_definition_of_e2el(seed: int) -> None:
    for tokens in (1, 2, 17):
        metrics = random_metrics(random.Random(seed), tokens)
        assert len(metrics.token_times) == tokens and metrics.ttft is not None and metrics.ttft > 0
        e2el = metrics.token_times[-1] - metrics.arrival
        assert metrics.ttft + (metrics.tpot or 0.0) * (tokens - 1) == pytest.approx(e2el)


def test_only_the_right_verdict_passes() -> None:
    assert check_verdict({"A": True, "B": True, "C": False}).startswith("Right")
    hints = {
        "bandwidth allow": {"A": False, "B": True, "C": False},
        "longer prompt": {"A": True, "B": False, "C": False},
        "below the ceiling": {"A": True, "B": True, "C": True},
        "Judge all": {"A": True},
    }
    for hint, verdict in hints.items():
        with pytest.raises(AssertionError, match=hint):
            check_verdict(verdict)
