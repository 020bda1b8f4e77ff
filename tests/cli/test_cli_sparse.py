"""The flags of sparse prefill: where they are taken, and what is refused with the cure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import TINY, Cli, refused

PROMPT = ["-p", "The river"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["generate", *TINY, *PROMPT, "--sparse-mass", "0.9"], ["sparse_mass without", "--sparse-prefill"]),
        (["chat", *TINY, "--sparse-sink", "2"], ["sparse_sink without", "--sparse-prefill"]),
        (["bench", "run", *TINY, "--sparse-recent", "2"], ["sparse_recent without", "--sparse-prefill"]),
        (["eval", "perplexity", *TINY, "--sparse-mass", "0.9"], ["sparse_mass without", "--sparse-prefill"]),
        (["serve", *TINY, "--sparse-mass", "0.9"], ["sparse_mass without", "--sparse-prefill"]),
        (["generate", *TINY, *PROMPT, "--sparse-prefill", "--sparse-mass", "0"], ["sparse_mass is 0", "up to 1"]),
        (["generate", *TINY, *PROMPT, "--sparse-prefill", "--sparse-recent", "-1"], ["sparse_recent is -1", "from 0"]),
        (["bench", "sparse", "--sparse-mass", "7"], ["sparse_mass is 7", "up to 1"]),
        (["bench", "sparse", "--context", "1000"], ["1000 tokens", "multiple of 64"]),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_what_does_not_fit_is_refused(cli: Cli, command: list[str], words: list[str]) -> None:
    refused(cli(*command), *words)


def test_perplexity_stands_beside_that_of_dense_prefill(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Four score and seven years ago our fathers brought forth a new nation. " * 30)
    sparse = ["--sparse-prefill", "--sparse-mass", "0.3", "--sparse-recent", "0", "--sparse-threshold", "128"]
    ended = cli(
        "eval", "perplexity", text, *TINY, "--dtype", "float32", "--window", "512", "--stride", "256", *sparse, "--json"
    )
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    cost = document["sparse"]
    assert cost["sparse_mass"] == 0.3 and cost["sparse_threshold"] == 128 and cost["sparse_sink"] == 1
    dense = json.loads(
        cli("eval", "perplexity", text, *TINY, "--dtype", "float32", "--window", "512", "--stride", "256", "--json").out
    )["perplexity"]
    assert cost["dense_perplexity"] == pytest.approx(dense, rel=1e-6)
    assert document["perplexity"] != dense, "nothing was left out"
    assert cost["sparse_added_percent"] == pytest.approx(100 * (document["perplexity"] / dense - 1))


SPARSE = ("--sparse-prefill", "--sparse-sink", "0", "--sparse-threshold", "1024")


def test_a_threshold_that_no_prompt_reaches_is_refused(cli: Cli) -> None:
    ended = cli("generate", *TINY, *PROMPT, "--sparse-prefill")
    assert ended.code == 1 and "begins at 8192 tokens" in ended.err and "--max-seq-len" in ended.err


def test_generate_takes_the_flags(cli: Cli) -> None:
    ended = cli("generate", *TINY, *PROMPT, "--max-tokens", "3", *SPARSE, "--json")
    plain = cli("generate", *TINY, *PROMPT, "--max-tokens", "3", "--json")
    assert ended.code == 0 and json.loads(ended.out)["token_ids"] == json.loads(plain.out)["token_ids"]
