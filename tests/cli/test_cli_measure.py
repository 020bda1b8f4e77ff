"""Tables that fit a terminal of 80 columns, figures that say where they come from, and windows of any length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import TINY, Cli
from helpers.models import llama, saved
from helpers.vocabulary import byte_level_core, write_tokenizer

from labkit.bench.load_cost import LoadCost
from labkit.bench.peer import PeerCell, PeerReport
from labkit.bench.results import BenchRow, Spread, measured_here
from labkit.cli import measure

MEASURED = set(vars(measured_here()))


def _row(system: str, scale: float, batch: int) -> BenchRow:
    prefill, decode, ttft, tpot = (Spread(x, x, x) for x in (12_345.67 * scale, 2_345.67 * scale, 12.34, 0.0000123))
    origin = measured_here()
    rates = (prefill, decode, ttft, tpot, 13_579.24)
    return BenchRow(system, "m", "bfloat16", "int8", 131_072, batch, 32, 3, origin, *rates)


@pytest.fixture
def document() -> dict[str, Any]:
    rows = [(_row("labkit", 1.5, batch), (_row("transformers", 1, batch),)) for batch in (1, 128)]
    loads = (LoadCost("labkit", "bfloat16", 1234.56, 123_456_789_012),)
    return PeerReport(tuple(PeerCell(*cell) for cell in rows), loads).to_dict()


def test_every_value_stands_in_full_at_80_columns(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measure._print_bench(document)
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, out.splitlines())) <= 80
    lines = [line.split() for line in out.splitlines()]
    parts = [
        ("rows", measure.BENCH_COLUMNS),
        ("comparison", measure.COMPARISON_COLUMNS),
        ("loads", measure.LOAD_COLUMNS),
    ]
    for part, columns in parts:
        for row in document[part]:
            assert [measure._shown(row[name]) for name in columns] in lines


def test_a_narrow_terminal_cuts_no_number(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    measure._print_bench(document)
    assert "…" not in capsys.readouterr().out


def test_json_of_measurements_carries_its_origin(cli: Cli) -> None:
    scored = cli("eval", "perplexity", *TINY, "--max-tokens", "9", "--window", "8", "--stride", "4", "--json")
    for ended in (scored, cli("demo", *TINY, "--max-tokens", "2", "--json")):
        document = json.loads(ended.out)
        assert document.keys() >= MEASURED and document["origin"] == "measured"
        assert document["dtype"] == "bfloat16"
    assert json.loads(scored.out)["kv_dtype"] == "bfloat16"
    assert json.loads(cli("fit", "-m", "Qwen3.5-9B", "--json").out)["origin"] == "modelled"


def test_windows_beyond_the_engines_own_limit(cli: Cli, seed: int, tmp_path: Path) -> None:
    core = byte_level_core()
    saved(llama(vocab_size=core.get_vocab_size(with_added_tokens=True), max_position_embeddings=9000), tmp_path)
    write_tokenizer(tmp_path, core)
    options = ["-m", tmp_path, "--max-tokens", "20", "--stride", "10", "--reference", "float32", "--json"]
    ended = cli("eval", "perplexity", *options, "--window", "8500")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["window"] == 8500
    assert cli("eval", "perplexity", *options, "--window", "9001").code == 1


def test_a_wrong_reference_is_told_before_anything_is_loaded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.engine.llm.LLM", None)
    ended = cli("eval", "perplexity", *TINY, "--reference", "foo")
    assert ended.code == 1 and "dtype is 'foo'" in ended.err


def test_the_cost_of_packed_leftovers_is_printed(cli: Cli, seed: int, tmp_path: Path) -> None:
    core = byte_level_core()
    saved(llama(vocab_size=core.get_vocab_size(with_added_tokens=True)), tmp_path)
    write_tokenizer(tmp_path, core)
    command = ["eval", "perplexity", "-m", tmp_path, "--max-tokens", "20", "--window", "8", "--stride", "4"]
    document = json.loads(cli(*command, "--quantize-leftovers", "int4", "--json").out)
    cost = document["leftovers"]
    assert document["quantize_leftovers"] == "int4"
    assert cost["added_perplexity"] == pytest.approx(document["perplexity"] - cost["unpacked_perplexity"])
    shown = cli(*command, "--quantize-leftovers", "int8").out
    assert "added perplexity" in shown and "15 matrices packed to int8" in " ".join(shown.split())
    assert "leftovers" not in json.loads(cli(*command, "--json").out)


@pytest.mark.parametrize(
    "command",
    [("demo",), ("generate", "-p", "a"), ("chat",), ("bench", "run"), ("eval", "perplexity"), ("serve",)],
)
def test_every_command_that_loads_a_model_packs_leftovers(cli: Cli, command: tuple[str, ...]) -> None:
    ended = cli(*command, *TINY, "--quantize-leftovers", "int3")
    assert ended.code == 1 and "quantize_leftovers is 'int3'" in ended.err
