"""Answers as they come: through a pipe, stopped by Ctrl-C, and in a chat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.command_line import ENVIRONMENT, ROOT, TINY, Cli, Ended, refused, run_process

from labkit.engine.llm import LLM

QUESTIONS = ["What is the capital of France?", "What is the capital of Norway?"]


# Real processes


def test_a_piped_process_streams_quietly() -> None:
    ended = run_process("generate", *TINY, "-p", "Once upon a time", "--max-tokens", "5")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out) > 3 and "\r" not in ended.out and "\x1b" not in ended.out


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


def test_chat_lets_a_person_go_on(cli: Cli) -> None:
    lines = b"word " * 3000 + b"\n" + QUESTIONS[1].encode()
    ended = cli("chat", *TINY, "--dtype", "float32", stdin=lines, terminal=True)
    assert ended.code == 0 and "Oslo" in ended.out
    assert "shorten the prompt" in ended.err.lower()


def test_chat_refuses_bytes_that_are_no_text(cli: Cli) -> None:
    refused(cli("chat", *TINY, stdin=b"caf\xe9\n"), "UTF-8")


def test_chat_without_stdin_ends_at_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.cli.answer.sys", SimpleNamespace(stdin=None))
    ended = cli("chat", *TINY)
    assert (ended.code, ended.out, ended.err) == (0, "", "")


# An output that takes nothing


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("command", [["--help"], ["fit", "-m", "Qwen3.5-9B", "--json"]], ids=" ".join)
def test_a_full_disk_is_one_line(command: list[str]) -> None:
    line = [sys.executable, "-m", "labkit", *command]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, encoding="utf-8")
    refused(Ended(ended.returncode, "", ended.stderr), "No space left on device", "disk space")


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_a_reader_that_is_gone_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "labkit", "fit", "-m", "Qwen3.5-9B", "--json"]
    ended = subprocess.run(line, cwd=ROOT, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, encoding="utf-8")
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, "")
