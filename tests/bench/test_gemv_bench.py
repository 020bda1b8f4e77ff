"""labkit bench gemv: what it asks of the GPU, with an imaginary one, and what it prints."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.command_line import run_process

from labkit.bench import gemv
from labkit.bench.gemv import GemvBench, GemvTimes, bench_gemv
from labkit.bench.tune_weights import weight_bytes
from labkit.cli import gemv as command
from labkit.errors import ConfigError, ExecutorError
from labkit.ops.awq_gemv import RUNGS
from labkit.ops.tuning_table import WeightShape

SHAPE = WeightShape("int4", 64, 256, 128)


def imaginary() -> GemvBench:
    times = GemvTimes(SHAPE, 1, {RUNGS[-1]: 1e-5, gemv.TORCH: 2e-5, gemv.CUBLAS: 4e-5})
    return GemvBench("imaginary", "1.2", "2.10", "0.3", "abc", "2026-11-30", 4.0, (times,))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(ExecutorError, match="torch sees none"):
        bench_gemv([SHAPE])


def test_rates_count_the_weight_with_its_scales() -> None:
    assert weight_bytes(SHAPE) == 64 * 256 // 2 + 64 * 2 * 4
    [times] = imaginary().times
    assert times.gb_per_s(RUNGS[-1]) == pytest.approx(weight_bytes(SHAPE) / 1e4)
    [row] = imaginary().to_dict()["times"]
    assert row["share_of_copy"] == pytest.approx(weight_bytes(SHAPE) / 1e4 / 4)


def test_the_layers_of_27b_are_measured() -> None:
    """Joined projections, whole and halved; both sides of every split."""
    shapes = {(shape.outputs, shape.inputs) for shape in gemv.SHAPES}
    assert {(34816, 5120), (5120, 17408), (17408, 5120), (5120, 8704)} <= shapes


def test_what_it_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gemv, "bench_gemv", lambda *arguments: imaginary())
    command.bench_gemv()
    text = capsys.readouterr().out
    assert "imaginary" in text and "64 x 256" in text and "torch int4" in text
    command.bench_gemv(as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["origin"] == "measured" and document["times"][0]["rows"] == 1


@pytest.mark.parametrize("arguments", [["--rows", "9"], ["--shapes", "17x"], ["--shapes", "64x100"]])
def test_wrong_usage_is_one_line(arguments: list[str]) -> None:
    ended = run_process("bench", "gemv", *arguments)
    assert ended.code == 1 and ended.err.count("\n") == 1


@pytest.mark.parametrize("text", ["64x256", "64x256:g128"])
def test_a_shape_with_or_without_its_groups(text: str) -> None:
    assert command._shape(text) == WeightShape("int4", 64, 256, 128)


@pytest.mark.parametrize("text", ["64x256:fp16", "64x256:g64", "64x100", "x"])
def test_other_shapes_are_refused_with_a_cure_that_works(text: str) -> None:
    with pytest.raises(ConfigError, match="groups of 128") as refused:
        command._shape(text)
    assert "such as 17408x5120;" in refused.value.cure and ":" not in refused.value.cure
