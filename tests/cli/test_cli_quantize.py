"""`labkit quantize`: a table, one JSON document, resuming, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import Cli, refused
from helpers.models import llama
from helpers.quantizing import model_on_disk

SMALL = ["--group-size", "32", "--windows", "2", "--window", "40", "--max-tokens", "600"]


@pytest.fixture
def source(seed: int, tmp_path: Path) -> Path:
    return model_on_disk(llama, tmp_path / "source")


@pytest.mark.parametrize("file_format", ["awq", "compressed-tensors"])
def test_json_holds_all_that_was_measured(cli: Cli, source: Path, tmp_path: Path, file_format: str) -> None:
    ended = cli("quantize", "-m", source, "--out", tmp_path / "out", *SMALL, "--format", file_format, "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["modules_quantized"] == 14 and document["modules_kept"] == ["lm_head"]
    assert document["bytes"] == (tmp_path / "out" / "model.safetensors").stat().st_size < document["bytes_before"]
    assert list(document["perplexity"]) == ["before", "rtn", "awq"] and document["text"] == "lincoln-1862.txt"
    assert document["scored"] == {"window": 512, "stride": 256, "max_tokens": 600, "dtype": "float32"}
    assert document["origin"] == "measured" and document["format"] == file_format
    score = cli("eval", "perplexity", "-m", tmp_path / "out", "--dtype", "float32", "--max-tokens", "600",
                "--window", "512", "--stride", "256", "--json")  # fmt: skip
    assert json.loads(score.out)["perplexity"] == pytest.approx(document["perplexity"]["awq"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]  # nothing of the comparison is left


def test_table(cli: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("quantize", "-m", source, "--out", tmp_path / "out", *SMALL)
    assert ended.code == 0, ended.err
    for words in (
        "14 modules in 4 bits, 1 in 16 bits",
        "round to nearest",
        "AWQ",
        "fp32, windows of 512 tokens",
        "measured",
        "more",
    ):
        assert words in ended.out
    assert "…" not in ended.out


def test_round_to_nearest_alone_and_nothing_measured(cli: Cli, source: Path, tmp_path: Path) -> None:
    ended = cli("quantize", "-m", source, "--out", tmp_path / "a", *SMALL, "--method", "rtn", "--json")
    assert list(json.loads(ended.out)["perplexity"]) == ["before", "rtn"]
    ended = cli(
        "quantize", "-m", source, "--out", tmp_path / "b", *SMALL, "--method", "rtn", "--no-perplexity", "--json"
    )
    assert ended.code == 0 and "perplexity" not in json.loads(ended.out)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_the_command_repeated_goes_on(cli: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["quantize", "-m", source, "--out", tmp_path / "out", *SMALL, "--no-perplexity"]
    with monkeypatch.context() as patch:
        patch.setattr("labkit.awq.quantize.write_weights", _interrupted)
        assert cli(*command).code == 130
    ended = cli(*command)
    assert ended.code == 0 and "2 layers were finished by an interrupted run" in ended.out
    refused(cli(*command), "is not empty", "empty or does not exist")


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_refusals_come_before_the_work(cli: Cli, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat " * 100)
    command = ["quantize", "-m", source, "--out", out, *SMALL]
    refused(cli(*command, "--format", "gptq"), "format is 'gptq'", "compressed-tensors")
    refused(cli(*command, "--group-size", "96"), "group_size is 96", "128")
    refused(cli(*command, "--text", tmp_path / "none.txt"), "none.txt cannot be read")
    refused(cli(*command, "--text", text, "--calibration", text), "flatters", "another --text")
    refused(cli(*command, "--max-tokens", "1"), "max_tokens is 1")
    refused(cli(*command, "--calibration", tmp_path / "none.txt"), "cannot be read", "--calibration")
    refused(cli("quantize", "-m", source, "--out", ""), "--out is empty")
    refused(cli("quantize", "-m", source, "--out", "a\0b"), "--out holds a zero byte")
    text.write_text("")
    refused(cli(*command, "--text", text), r"to measure on has 0 token", "longer --text", "--no-perplexity")
    refused(cli(*command, "--method", "rtn", "--calibration", text), "rtn reads no calibration text")
    (source / "tokenizer.json").unlink()
    refused(cli(*command, "--method", "rtn"), "no tokenizer", "--no-perplexity")
    refused(cli(*command, "-m", "no-such-model"), "no-such-model")
    assert not out.exists()


def test_a_model_of_few_positions_is_scored_in_small_windows(cli: Cli, seed: int, tmp_path: Path) -> None:
    source = model_on_disk(llama, tmp_path / "source", max_position_embeddings=256)
    ended = cli("quantize", "-m", source, "--out", tmp_path / "out", *SMALL, "--json")
    assert ended.code == 0, ended.err
    score = cli("eval", "perplexity", "-m", source, "--dtype", "float32", "--max-tokens", "600",
                "--window", "254", "--stride", "127", "--json")  # fmt: skip
    assert json.loads(score.out)["perplexity"] == pytest.approx(json.loads(ended.out)["perplexity"]["before"])


def test_a_folder_that_looks_like_a_home(
    cli: Cli, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such user: the name stays what it is, for writing and for measuring."""
    monkeypatch.chdir(tmp_path)
    ended = cli("quantize", "-m", source, "--out", "~nobody-has-this-name/out", *SMALL)
    assert ended.code == 0, ended.err
    assert (tmp_path / "~nobody-has-this-name" / "out" / "config.json").is_file()
