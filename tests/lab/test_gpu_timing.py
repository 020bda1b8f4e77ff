"""Without a GPU nothing is measured and nothing is prepared; with one, the figure says on what it was measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from labkit.lab import gpu_timing


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def prepare() -> Callable[[], object]:
        raise AssertionError("there is no GPU to prepare anything on")

    assert gpu_timing.gpu_report(prepare, nbytes=10**9) == "no NVIDIA GPU here: nothing measured"


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    monkeypatch.setattr(gpu_timing, "seconds_per_call", lambda call: 0.002)
    given = []
    report = gpu_timing.gpu_report(lambda *words: given.extend(words) or (lambda: None), "a", "b", nbytes=10**9)
    assert given == ["a", "b"]
    assert report.startswith("2.000 ms, 500 GB/s (measured on Tesla V100, torch ")
    report = gpu_timing.gpu_report(lambda: lambda: None, nbytes=10**9, flop=10**11)
    assert report.startswith("2.000 ms, 500 GB/s, 50.0 TFLOP/s (measured on")


def test_the_median_is_taken_over_calls_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    durations = iter([1.0] * 10 + [3.0] * 9 + [1000.0])  # milliseconds

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return next(durations)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert gpu_timing.seconds_per_call(lambda: calls.append(1)) == pytest.approx(0.002)
    assert len(calls) == 23
