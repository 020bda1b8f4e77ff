"""labkit bench gdn: what it asks for and makes of the times, with an imaginary clock, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.command_line import run_process

from labkit.bench import gdn
from labkit.bench.clock import LABKIT, Clock
from labkit.bench.gdn import bench_gdn, measure
from labkit.bench.gdn_calls import OPERATIONS, TORCH
from labkit.bench.gdn_cases import PARTS, Case, Geometry, gdn_cases
from labkit.bench.gdn_times import GdnBench, GdnTimes
from labkit.bench.graph_timing import Call
from labkit.cli import gdn as command
from labkit.errors import ConfigError, ExecutorError

TINY = Geometry("tiny", 1, 2, 64, 64, 4)
CPU = torch.device("cpu")
EACH = [Case("conv", TINY, 2, 1), Case("decode", TINY, 2, 1), Case("prefill", TINY, 2, 70), Case("norm", TINY, 1, 5)]


def imaginary() -> GdnBench:
    times = tuple(GdnTimes(case, {LABKIT: 1e-5, "1_first": 2e-5, TORCH: 4e-5}) for case in EACH)
    return GdnBench("imaginary", "1.2", "2.10", "0.3", "abc", "2026-11-30", 10.0, times)


class Recorder:
    """A clock that runs every call twice, keeps what it gave, and says milliseconds."""

    def __init__(self) -> None:
        self.results: list[list[Any]] = []
        self.asked: list[int] = []

    def seconds(self, calls: Sequence[Call]) -> float:
        self.results.append([call() for call in [*calls, *calls]])
        return 1e-3 * len(self.results)

    def copies(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        return 3

    @property
    def clock(self) -> Clock:
        return Clock(self.seconds, self.copies)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(ExecutorError, match="bench gdn measures on an NVIDIA GPU, and torch sees none"):
        bench_gdn(gdn_cases(["decode"], ["27b-tp2"]))


@pytest.mark.parametrize("case", EACH, ids=str)
def test_labkit_and_torch_are_timed(case: Case) -> None:
    recorder = Recorder()
    [times] = measure([case], CPU, recorder.clock)
    assert times.case is case and times.seconds == {LABKIT: 1e-3, TORCH: 2e-3}
    assert recorder.asked == [case.moved_bytes] and [len(each) for each in recorder.results] == [6, 6]


@pytest.mark.parametrize("case", EACH, ids=str)
def test_all_rungs_are_timed_on_demand(case: Case) -> None:
    [times] = measure([case], CPU, Recorder().clock, all_rungs=True)
    assert list(times.seconds) == [LABKIT, *OPERATIONS[case.part].rungs, TORCH]


def test_what_takes_too_long_is_left_out() -> None:
    never = Clock(lambda calls: None, lambda nbytes: 1)
    for times in measure(EACH, CPU, never):
        row = times.to_dict(1.0)
        assert times.seconds == row["microseconds"] == {} and row.get("share_of_copy") is None


def test_a_case_that_does_not_fit_is_named() -> None:
    def full(nbytes: int) -> int:
        raise torch.OutOfMemoryError

    for case in EACH:
        with pytest.raises(ExecutorError, match=rf"memory does not hold the case {case}\. .* --batch or --tokens"):
            measure([case], CPU, Clock(lambda calls: 1.0, full))


def test_torch_without_room_is_left_out_and_labkit_is_not() -> None:
    def only(kept: int) -> Clock:
        """Room for one of the two that are timed."""
        turn = iter(range(2))

        def seconds(calls: Sequence[Call]) -> float:
            if next(turn) != kept:
                raise torch.OutOfMemoryError
            return 1.0

        return Clock(seconds, lambda nbytes: 1)

    [times] = measure(EACH[1:2], CPU, only(0))
    assert times.seconds == {LABKIT: 1.0}
    with pytest.raises(ExecutorError, match="does not hold"):
        measure(EACH[1:2], CPU, only(1))


def test_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    measure(EACH[1:3], CPU, Recorder().clock, progress=lambda *what: told.append(what))
    assert told == [(0, 2, "decode tiny, 2 x 1 tokens"), (1, 2, "prefill tiny, 2 x 70 tokens")]


def test_the_sources_are_those_of_every_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(gdn, "sources_digest", lambda rungs: asked.extend(rungs) or "abc")
    assert gdn.timed_kernels() == "abc"
    assert asked == [(each.op, rung) for each in OPERATIONS.values() for rung in each.rungs]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_small_cases_on_a_gpu() -> None:
    """With real graphs: every kernel has a figure, and no memory is faster than twice a copy."""
    document = bench_gdn(gdn_cases(PARTS, ["labkit-tiny"], [64], [512]), all_rungs=True).to_dict()
    for part in PARTS:
        assert len(document[part]) == (1 if part in ("decode", "prefill") else 2)
        for row in document[part]:
            assert {LABKIT, TORCH, *OPERATIONS[part].rungs} == set(row["microseconds"])
            assert part == "prefill" or 0 < row["share_of_copy"] < 2


def test_the_document() -> None:
    document = json.loads(json.dumps(imaginary().to_dict()))
    assert document["origin"] == "measured" and document["device"] == "imaginary" and "times" not in document
    for case in EACH:
        [row] = document[case.part]
        assert (row["model"], row["sequences"], row["tokens"]) == ("tiny", case.sequences, case.tokens)
        assert row["microseconds"] == pytest.approx({LABKIT: 10, "1_first": 20, TORCH: 40})
    [row] = document["decode"]
    nbytes = EACH[1].moved_bytes
    assert row["mb"] == pytest.approx(nbytes / 1e6) and row["gb_per_s"][TORCH] == pytest.approx(nbytes / 4e4)
    assert row["share_of_copy"] == pytest.approx(nbytes / 1e4 / 10)
    [row] = document["prefill"]
    assert row["gflop"] == pytest.approx(EACH[2].flop / 1e9)
    assert row["tflop_per_s"]["1_first"] == pytest.approx(EACH[2].flop / 2e7)
    assert row["microseconds_per_1024_tokens"][LABKIT] == pytest.approx(10 * 1024 / 140)


def test_what_it_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(gdn, "bench_gdn", lambda *arguments: asked.append(arguments) or imaginary())
    monkeypatch.setenv("COLUMNS", "150")
    command.bench_gdn()
    text = capsys.readouterr().out
    for word in ("imaginary", "torch", "1_first", "conv", "decode", "prefill", "norm", "us / 1,024", "of copy"):
        assert word in text
    command.bench_gdn(part="decode", geometry=["27b"], batch=[2], as_json=True, all_rungs=True)
    assert json.loads(capsys.readouterr().out)["decode"][0]["sequences"] == 2
    assert len(asked[0][0]) == 42 and asked[0][1] is False
    assert [(case.part, case.geometry.name, case.rows) for case in asked[1][0]] == [("decode", "27b", 2)]
    assert asked[1][1] is True


@pytest.mark.parametrize(
    "arguments",
    [
        {"part": "attention"},
        {"batch": [0]},
        {"tokens": [-1]},
        {"geometry": ["gpt2"]},
        {"part": "prefill", "batch": [1]},
        {"part": "decode", "tokens": [64]},
    ],
)
def test_wrong_usage_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        command.bench_gdn(**arguments)


def test_a_refusal_is_one_line() -> None:
    ended = run_process("bench", "gdn", "--part", "decode", "--tokens", "64")
    assert ended.code == 1 and ended.err.count("\n") == 1 and "--tokens belongs to conv, prefill and norm" in ended.err
