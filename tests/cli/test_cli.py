"""The command line: help, JSON, and what wrong usage gives."""

from __future__ import annotations

import io
import json
import sys

import pytest
from helpers.command_line import TINY, Cli
from typer.testing import CliRunner

from labkit.cli.app import app

COMMANDS = [
    ["doctor"],
    ["demo"],
    ["generate"],
    ["chat"],
    ["bench", "run"],
    ["bench", "sim"],
    ["bench", "gemv"],
    ["bench", "attention"],
    ["bench", "gdn"],
    ["bench", "sparse"],
    ["eval", "perplexity"],
    ["fit"],
    ["build"],
    ["quantize"],
    ["tune"],
    ["sim"],
    ["serve"],
]


# Help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_gives_an_example_that_names_the_command(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    text = " ".join(result.output.split())
    assert result.exit_code == 0
    assert f"Example: labkit {' '.join(command)}" in text
    assert "--help" in text


def test_every_command_is_listed_here() -> None:
    groups = [("", app), *((group.name, group.typer_instance) for group in app.registered_groups)]
    found = {
        (name, command.name or command.callback.__name__)
        for name, group in groups
        for command in (group.registered_commands if group else [])
        if command.callback
    }
    assert found == {(" ".join(command[:-1]), command[-1]) for command in COMMANDS}


@pytest.mark.parametrize("group", [[], ["bench"], ["eval"]])
def test_a_group_lists_its_commands(group: list[str]) -> None:
    result = CliRunner().invoke(app, [*group, "--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        if command[:-1] == group:
            assert f" {command[-1]} " in result.output


# JSON


JSON_COMMANDS: list[tuple[list[str], set[str]]] = [
    (["generate", *TINY, "-p", "Once", "--max-tokens", "3"], {"text", "token_ids", "finish_reason", "ttft_seconds"}),
    (["demo", *TINY, "--max-tokens", "4"], {"text", "decode_tok_s", "kv_pages_used", "peak_memory_bytes"}),
    (["fit", "-m", "Qwen3.5-27B", "--weights", "g128-sym", "--gpus", "2"], {"weight_bytes", "request"}),
    (["doctor"], {"ok_to_learn", "checks"}),
    (["bench", "run", *TINY, "--context", "8", "--batch", "1", "--decode-tokens", "2", "--repeats", "1"], {"rows"}),
    (["eval", "perplexity", *TINY, "--max-tokens", "20", "--window", "16", "--stride", "8"], {"perplexity", "tokens"}),
]


@pytest.mark.parametrize(("command", "keys"), JSON_COMMANDS, ids=[" ".join(c[:2]) for c, _ in JSON_COMMANDS])
def test_json_is_one_document_and_nothing_else(cli: Cli, command: list[str], keys: set[str]) -> None:
    ended = cli(*command, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert keys <= json.loads(ended.out).keys()


def test_json_and_stream_give_the_same_text(cli: Cli) -> None:
    command = ["generate", *TINY, "-p", "The capital of France is", "--max-tokens", "8", "--dtype", "float32"]
    streamed, document = cli(*command), cli(*command, "--json")
    assert streamed.code == 0 and streamed.err == ""
    assert streamed.out == json.loads(document.out)["text"] + "\n"
    assert len(json.loads(document.out)["token_ids"]) > 1


def test_json_survives_a_terminal_without_utf8(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1", write_through=True))
    ended = cli("generate", *TINY, "-p", "naïve ← 😀", "--max-tokens", "2", "--json")
    assert ended.code == 0
    assert json.loads(raw.getvalue().decode("ascii"))["prompt"] == "naïve ← 😀"


def test_a_terminal_without_utf8_shows_question_marks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    ended = cli("demo", *TINY, "-p", "café", "--max-tokens", "2")
    assert ended.code == 0 and b"caf?" in raw.getvalue()


# Wrong usage


@pytest.mark.parametrize(
    "command",
    [
        ["generate", *TINY, "-p", "x", "--bogus"],
        ["generate", *TINY, "-p", "x", "--max-tokens", "many"],
        ["generate", *TINY, "-p", "x", "--max-tokens", "1.5"],
        ["generate", *TINY, "-p", "x", "--temperature", "warm"],
        ["generate", *TINY],
        ["fit"],
        ["serve", *TINY, "--port", "99999"],
        ["bench", "run", *TINY, "--peer", "nobody"],
        ["bench", "fly"],
        ["nosuch"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(cli: Cli, command: list[str]) -> None:
    ended = cli(*command)
    assert ended.code == 2
    assert "Traceback" not in ended.err and "Usage:" in ended.err + ended.out
