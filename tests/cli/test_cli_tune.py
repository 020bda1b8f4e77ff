"""``labkit tune``: what it prints, what it asks for, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.command_line import Cli, refused
from helpers.tuning import HALF, INT4, some_table

from labkit.bench import tune
from labkit.ops.tuning_table import TuningTable, WeightShape

DEVICE = "Tesla V100-SXM2-16GB"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[WeightShape], Sequence[int]]]:
    """What the command wants measured, each time; it gets a small table."""
    calls: list[tuple[Sequence[WeightShape], Sequence[int]]] = []

    def measure(shapes: Sequence[WeightShape], rows: Sequence[int], progress: Any) -> TuningTable:
        calls.append((shapes, rows))
        progress(0, 1, "a shape")
        return some_table(DEVICE)

    monkeypatch.setattr(tune, "tune", measure)
    return calls


def test_the_table_fits_a_terminal_and_marks_the_fastest(cli: Cli, asked: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shapes = ("--shapes", "4096x5120:g128", "--shapes", "24x5120:fp16")
    ended = cli("tune", *shapes, "--rows", 8, "--rows", 1, "--rows", 8)
    assert (ended.code, ended.err) == (0, "")
    assert asked == [([INT4, HALF], [1, 8])]
    assert max(map(len, ended.out.splitlines())) <= 80
    assert f"measured: {DEVICE}" in ended.out and "570.86.10" in ended.out and "2026-11-30" in ended.out
    [line] = [line.split() for line in ended.out.splitlines() if line.split()[:1] == ["64"]]
    assert sorted(line) == ["-", "64", "70.0*", "80.0", "90.0"]  # awq_gemv takes no 64 rows
    assert "Tesla-V100-SXM2-16GB.json" in ended.out


def test_json_is_one_document(cli: Cli, asked: list[Any]) -> None:
    ended = cli("tune", "--shapes", "4096x5120:g128", "--json")
    document = json.loads(ended.out)
    assert document["origin"] == "measured" and document["device"] == DEVICE
    assert document["path"].endswith("Tesla-V100-SXM2-16GB.json")
    assert {row["kind"] for row in document["measured"]} == {"int4", "half"}


def test_a_model_names_the_shapes(cli: Cli, asked: list[Any]) -> None:
    assert cli("tune").code == 0
    assert cli("tune", "-m", "Qwen3.5-27B", "--weights", "g32-sym", "--tp-size", "2").code == 0
    assert cli("tune", "-m", "labkit-tiny").code == 0
    (default, rows), (halved, _), (tiny, _) = asked
    assert WeightShape("int4", 34816, 5120, 128) in default and set(rows) == set(tune.ROWS)
    assert WeightShape("int4", 17408, 5120, 32) in halved
    assert {shape.kind for shape in tiny} == {"half"}


def test_refusals(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(cli("tune"), "NVIDIA GPU", "labkit doctor")
    refused(cli("tune", "--shapes", "24"), "no shape", "17408x5120:g128")
    refused(cli("tune", "--shapes", "24x5120:fp16", "-m", "labkit-tiny"), "--shapes", "--model")
    refused(cli("tune", "--shapes", "24x5120:fp16", "--tp-size", "2"), "--shapes", "--tp-size")
    refused(cli("tune", "-m", "Qwen3.5-27B", "--tp-size", "5"), "--tp-size")
    refused(cli("tune", "-m", "nowhere"), "nowhere")
    assert cli("tune", "--tp-size", "0").code == 2
