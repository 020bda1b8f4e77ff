"""The command line: help, JSON, exit codes, and one line with the cure for whatever is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from labkit.cli import main
from labkit.cli.app import app

COMMANDS = [
    ["doctor"],
    ["demo"],
    ["generate"],
    ["chat"],
    ["bench", "run"],
    ["eval", "perplexity"],
    ["fit"],
    ["serve"],
]
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
QUESTIONS = ["What is the capital of France?", "What is the capital of Norway?"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``labkit ...`` in this process, its output piped."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    return run


def refused(ended: Ended, *words: str) -> None:
    """Exit code 1, nothing on stdout, one line on stderr that holds the words (cases aside)."""
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("labkit: ") and ended.err.endswith("\n") and ended.err.count("\n") == 1
    for word in words:
        assert re.search(word, ended.err, re.IGNORECASE), f"{word!r} is not in: {ended.err}"


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


TINY = ["-m", "labkit-tiny"]
JSON_COMMANDS: list[tuple[list[str], set[str]]] = [
    (["generate", *TINY, "-p", "Once", "--max-tokens", "3"], {"text", "token_ids", "finish_reason", "ttft_seconds"}),
    (["demo", *TINY, "--max-tokens", "4"], {"text", "decode_tok_s", "kv_pages_used", "peak_memory_bytes"}),
    (["fit", "-m", "Qwen3.5-27B", "--weights", "g128-sym", "--gpus", "2"], {"weight_bytes", "request"}),
    (["doctor"], {"ok_to_learn", "checks"}),
    (["bench", "run", *TINY, "--context", "8", "--batch", "1", "--decode-tokens", "2", "--repeats", "1"], {"rows"}),
    (["eval", "perplexity", *TINY, "--max-tokens", "20", "--window", "16", "--stride", "8"], {"perplexity", "tokens"}),
]


@pytest.mark.parametrize(("command", "keys"), JSON_COMMANDS, ids=lambda value: "-".join(value)[:20])
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


# Bad parameters


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", ""], ["no token", "at least one token"]),
        (["-p", "word " * 3000], ["3000 tokens", "at most 2048", "shorten the prompt"]),
        (["-p", "x", "--max-seq-len", "1"], ["shorten|max_seq_len"]),
        (["-p", "x", "--max-seq-len", "0"], ["max_seq_len is 0", "from 1"]),
        (["-p", "x", "--max-seq-len", "99999999"], ["max_seq_len", "at most 2048"]),
        (["-p", "x", "--temperature", "-1"], ["temperature is -1", "from 0"]),
        (["-p", "x", "--temperature", "nan"], ["temperature is nan"]),
        (["-p", "x", "--max-tokens", "0"], ["max_tokens is 0", "from 1"]),
        (["-p", "x", "--max-tokens", "-3"], ["max_tokens is -3"]),
        (["-p", "x", "--top-p", "1.5"], ["top_p is 1.5"]),
        (["-p", "x", "--top-k", "-1"], ["top_k is -1"]),
        (["-p", "x", "--min-p", "2"], ["min_p is 2"]),
        (["-p", "x", "--repetition-penalty", "0"], ["repetition_penalty is 0"]),
        (["-p", "x", "--stop", ""], ["stop"]),
        (["-p", "x", "--dtype", "float17"], ["dtype is 'float17'", "float32"]),
        (["-p", "x", "--kv-cache-dtype", "int3"], ["kv_cache_dtype is 'int3'", "int8"]),
        (["-p", "x", "--executor", "cuda"], ["cuda", "torch"]),
        (["-p", "x", "--executor", "abacus"], ["executor is 'abacus'", "auto"]),
    ],
    ids=lambda value: " ".join(value)[:30],
)
def test_bad_parameters_are_refused_with_the_cure(cli: Cli, arguments: list[str], words: list[str]) -> None:
    refused(cli("generate", *TINY, *arguments), *words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["bench", "run", *TINY, "--context", "0"], ["context_lengths", "from 1"]),
        (["bench", "run", *TINY, "--batch", "-1"], ["batch_sizes", "from 1"]),
        (["bench", "run", *TINY, "--repeats", "0"], ["repeats", "from 1"]),
        (["eval", "perplexity", *TINY, "--window", "0"], ["window is 0"]),
        (["eval", "perplexity", *TINY, "--max-tokens", "0"], ["max_tokens is 0"]),
        (["eval", "perplexity", "no-such-file.txt", *TINY], ["no-such-file.txt", "UTF-8"]),
        (["fit", "-m", "Qwen9-1T"], ["Qwen9-1T", "Qwen3.5-27B"]),
        (["fit", "-m", "Qwen3.5-27B", "--gpus", "0"], ["gpus is 0"]),
        (["fit", "-m", "Qwen3.5-27B", "--kv-cache-dtype", "int3"], ["int3", "int8"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_other_commands_refuse_in_the_same_way(cli: Cli, command: list[str], words: list[str]) -> None:
    refused(cli(*command), *words)


def test_a_text_that_is_no_text_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\xff\xfe")
    refused(cli("eval", "perplexity", tmp_path / "picture.txt", *TINY), "picture.txt", "UTF-8")
    refused(cli("eval", "perplexity", tmp_path, *TINY), "cannot be read", "UTF-8")


# Bad checkpoints


@pytest.fixture
def copied(tiny_path: Path, tmp_path: Path) -> Path:
    """A copy of labkit-tiny to spoil; its big files are links until a test replaces them."""
    folder = tmp_path / "spoilt"
    folder.mkdir()
    for file in tiny_path.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def rewrite(file: Path, content: str | bytes) -> None:
    file.unlink()
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def edit_json(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    rewrite(file, json.dumps(content))


def shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[1]


def truncate(folder: Path) -> None:
    rewrite(shard(folder), shard(folder).read_bytes()[:-1000])


def truncate_in_the_header(folder: Path) -> None:
    rewrite(shard(folder), shard(folder).read_bytes()[:100])


def drop_a_shard(folder: Path) -> None:
    shard(folder).unlink()


def name_an_absent_shard(folder: Path) -> None:
    def change(index: dict[str, Any]) -> None:
        index["weight_map"][min(index["weight_map"])] = "model-00009-of-00003.safetensors"

    edit_json(folder / "model.safetensors.index.json", change)


def write_a_nan(folder: Path) -> None:
    tensors = load_file(shard(folder))
    name = next(n for n, tensor in sorted(tensors.items()) if n.endswith("proj.weight") and "mtp" not in n)
    tensors[name].view(-1)[7] = torch.nan
    target = shard(folder)
    target.unlink()
    save_file(tensors, target, metadata={"format": "pt"})


def other_architecture(folder: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        config["model_type"] = config.setdefault("text_config", {})["model_type"] = "mamba"

    edit_json(folder / "config.json", change)


def drop_the_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def break_the_config(folder: Path) -> None:
    rewrite(folder / "config.json", '{"model_type": "qwen3_5_text", ')


def wrong_type_in_the_config(folder: Path) -> None:
    edit_json(folder / "config.json", lambda c: c.get("text_config", c).update(num_hidden_layers="eight"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (truncate, ["model-00002-of-00003.safetensors", "again"]),
        (truncate_in_the_header, ["model-00002-of-00003.safetensors", "again"]),
        (drop_a_shard, ["model-00002-of-00003.safetensors"]),
        (name_an_absent_shard, ["model-00009-of-00003.safetensors"]),
        (write_a_nan, ["NaN", r"proj\.weight"]),
        (other_architecture, ["mamba", "llama and dense qwen3_5"]),
        (drop_the_config, ["config.json"]),
        (break_the_config, ["config.json"]),
        (wrong_type_in_the_config, ["num_hidden_layers", "eight"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_broken_checkpoints_are_refused(
    cli: Cli, copied: Path, spoil: Callable[[Path], None], words: list[str]
) -> None:
    spoil(copied)
    refused(cli("generate", "-m", copied, "-p", "x", "--max-tokens", "1"), *words)


@pytest.mark.parametrize("command", [["demo"], ["chat"], ["bench", "run"], ["eval", "perplexity"], ["fit"]])
def test_every_command_refuses_a_broken_config(cli: Cli, copied: Path, command: list[str]) -> None:
    break_the_config(copied)
    refused(cli(*command, "-m", copied), "config.json")


@pytest.mark.parametrize("template", ["{% if messages %}", "{{ messages.nothing.at_all }}", "{{ 1 / 0 }}"])
def test_a_broken_template_is_named(cli: Cli, copied: Path, template: str) -> None:
    edit_json(copied / "tokenizer_config.json", lambda config: config.update(chat_template=template))
    for extra in copied.glob("*.jinja"):
        extra.unlink()
    refused(cli("demo", "-m", copied, "--max-tokens", "1"), "template")


def test_a_missing_directory_is_no_model(cli: Cli, tmp_path: Path) -> None:
    refused(cli("generate", "-m", tmp_path / "absent", "-p", "x"), "absent", "directory with config.json")
    (tmp_path / "empty").mkdir()
    refused(cli("generate", "-m", tmp_path / "empty", "-p", "x"), "config.json")


def test_a_directory_without_tokenizer_says_so(cli: Cli, copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    refused(cli("generate", "-m", copied, "-p", "x"), "tokenizer.json")


def test_a_hub_name_gives_the_download_command() -> None:
    ended = subprocess_cli("generate", "-m", "org/name", "-p", "x")
    refused(ended, r"`hf download org/name --local-dir name`")


# Real processes


def subprocess_cli(*arguments: str, stdin: str = "", **environment: str) -> Ended:
    command = [sys.executable, "-m", "labkit", *arguments]
    settings: dict[str, Any] = {"cwd": ROOT, "env": ENVIRONMENT | environment, "timeout": 120, "encoding": "utf-8"}
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, **settings)
    return Ended(done.returncode, done.stdout, done.stderr)


def test_a_piped_process_streams_quietly() -> None:
    ended = subprocess_cli("generate", *TINY, "-p", "Once upon a time", "--max-tokens", "5")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out) > 3 and "\r" not in ended.out and "\x1b" not in ended.out


def test_an_error_of_a_process_has_no_traceback(tmp_path: Path) -> None:
    refused(subprocess_cli("generate", "-m", str(tmp_path / "absent"), "-p", "x"), "absent")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send")
def test_ctrl_c_ends_with_130_and_no_traceback() -> None:
    command = [sys.executable, "-m", "labkit", "generate", *TINY, "-p", "In the beginning", "--max-tokens", "1500"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert process.stdout is not None
    started = process.stdout.read(1)  # the answer is under way
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert started and "Traceback" not in err and err.strip() == "labkit: interrupted."


# Chat


def test_chat_answers_piped_lines_until_they_end(cli: Cli) -> None:
    lines = f"{QUESTIONS[0]}\n/reset\n\n{QUESTIONS[1]}\n".encode()
    ended = cli("chat", *TINY, "--dtype", "float32", stdin=lines)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == ["The capital of France is Paris.", "The capital of Norway is Oslo."]


def test_chat_remembers_until_reset(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, str]]] = []
    from labkit.engine.llm import LLM

    real = LLM.stream_chat

    def spy(self: LLM, messages: Any, *rest: Any, **settings: Any) -> Any:
        seen.append([(message["role"], message["content"][:3]) for message in messages])
        return real(self, messages, *rest, **settings)

    monkeypatch.setattr(LLM, "stream_chat", spy)
    ended = cli(
        "chat", *TINY, "--system", "Be brief.", "--max-tokens", "2", stdin=b"one\ntwo\n/reset\nthree\n/exit\nfour\n"
    )
    assert ended.code == 0
    start = [("system", "Be ")]
    assert [[role for role, _ in turn] for turn in seen] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]
    assert seen[1][-1] == ("user", "two") and seen[2] == [*start, ("user", "thr")]


def test_chat_stops_a_script_at_an_impossible_line(cli: Cli) -> None:
    ended = cli("chat", *TINY, "--max-tokens", "2", stdin=b"word " * 3000 + b"\nhello\n")
    refused(ended, "tokens", "shorten the prompt")


def test_chat_lets_a_person_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["word " * 3000, QUESTIONS[1]])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, "/exit"))
    monkeypatch.setattr(io.TextIOWrapper, "isatty", lambda self: True, raising=False)
    ended = cli("chat", *TINY, "--dtype", "float32")
    assert ended.code == 0 and "Oslo" in ended.out
    assert "shorten the prompt" in ended.err.lower()


def test_chat_refuses_bytes_that_are_no_text(cli: Cli) -> None:
    refused(cli("chat", *TINY, stdin=b"caf\xe9\n"), "UTF-8")
