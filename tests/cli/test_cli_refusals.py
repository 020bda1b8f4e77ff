"""Bad parameters and bad checkpoints: exit code 1 and one line on stderr that names the cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import TINY, Cli, refused, run_process
from safetensors.torch import load_file, save_file

# Bad parameters


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", ""], ["no token", "at least one token"]),
        (["-p", "word " * 3000], ["300. tokens", "at most 2048", "shorten the prompt"]),
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
        (["eval", "perplexity", *TINY, "--reference", "foo"], ["dtype is 'foo'", "float32"]),
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
    ended = run_process("generate", "-m", "org/name", "-p", "x")
    refused(ended, r"`hf download org/name --local-dir name`")


def test_an_error_of_a_process_has_no_traceback(tmp_path: Path) -> None:
    refused(run_process("generate", "-m", str(tmp_path / "absent"), "-p", "x"), "absent")
