"""Tokenizer files with fields of wrong types: a TokenizerError, never a bare one, and no panic of the library."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.vocabulary import byte_level_core, gguf_metadata, write_tokenizer

from labkit import SamplingParams
from labkit.engine.logit_shaping import shape_logits
from labkit.engine.open_tokenizer import open_tokenizer
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import TokenizerError
from labkit.model.checkpoint.report import LoadReport

CORE = byte_level_core()
SIZE = CORE.get_vocab_size()
NO_IDS: list[Any] = ["x", {}, [[1]], [None], True, [True], 1.5]


def refused(path: Path, named: str) -> None:
    with pytest.raises(TokenizerError, match=named) as caught:
        Tokenizer.from_directory(path)
    assert caught.value.cure


@pytest.mark.parametrize(
    "declared",
    [{"x": {"content": "a"}}, {"5": {}}, {"5": "a"}, {"5": {"content": 5}}, {"-1": {"content": "a"}}, [], [1], "a", 5,
     {"9" * 5000: {"content": "a"}}],
)  # fmt: skip
def test_added_tokens(tmp_path: Path, declared: Any) -> None:
    refused(write_tokenizer(tmp_path, CORE, {"added_tokens_decoder": declared}), "added_tokens_decoder")


@pytest.mark.parametrize("template", [["a"], 5, {}, [{"name": "default"}], [{"name": "default", "template": 5}], True])
def test_chat_templates(tmp_path: Path, template: Any) -> None:
    refused(write_tokenizer(tmp_path / "a", CORE, {"chat_template": template}), "chat_template")


def test_sound_chat_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    for i, (stored, read) in enumerate(
        [(None, {}), ("A", {"default": "A"}), (named, {"default": "A", "tool_use": "B"})]
    ):
        path = write_tokenizer(tmp_path / str(i), CORE, {"chat_template": stored})
        assert Tokenizer.from_directory(path).templates == read


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "generation_config.json"])
def test_files_that_are_not_utf8(tmp_path: Path, name: str) -> None:
    write_tokenizer(tmp_path, CORE)
    (tmp_path / name).write_bytes(b'{"a": "\xff"}')
    refused(tmp_path, name)


@pytest.mark.parametrize("value", NO_IDS)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_end_tokens(tmp_path: Path, name: str, value: Any) -> None:
    write_tokenizer(tmp_path, CORE)
    (tmp_path / name).write_text(json.dumps({"eos_token_id": value}))
    refused(tmp_path, "eos_token_id")


def test_end_tokens_outside_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, CORE)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [-1, 0, SIZE - 1, SIZE, 10**30]}))
    (tmp_path / "config.json").write_text('{"text_config": "none"}')
    assert Tokenizer.from_directory(tmp_path).eos_ids == (0, SIZE - 1)


def test_ids_outside_the_row_mask_and_penalise_nothing() -> None:
    wild = [-1, -(10**30), 3, 10**30]
    row = np.array([1.0, 2.0, 3.0])
    assert shape_logits(row, SamplingParams(min_tokens=1), [], [], wild).tolist() == [1, 2, 3]
    assert shape_logits(row, SamplingParams(min_tokens=1), [], [], [*wild, 1]).tolist() == [1, -np.inf, 3]
    penalised = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    assert shape_logits(row, penalised, [-1, 3], [-2, 4], ()).tolist() == [1, 2, 3]


WRONG_KEYS: dict[str, list[Any]] = {
    "merges": ["ab", 1, [1], ["ab"], {}, [["a", "b"]]],
    "tokens": ["a plain string", 1, [1, 2], [None], {}, []],
    "pre": [["gpt-2"], 1, {}, "unheard-of"],
    "model": [["gpt2"], 1],
    "token_type": ["abc", 3, {}],
    **dict.fromkeys([f"{key}_token_id" for key in ("eos", "eot", "bos", "padding")], NO_IDS),
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG_KEYS.items() for value in values])
def test_gguf_keys(name: str, value: Any) -> None:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_gguf(gguf_metadata(CORE, **{name: value}))
    assert caught.value.cure


@pytest.mark.parametrize("template", [5, ["a"]])
def test_gguf_template(template: Any) -> None:
    with pytest.raises(TokenizerError, match="chat_template"):
        Tokenizer.from_gguf(gguf_metadata(CORE) | {"tokenizer.chat_template": template})


def test_gguf_special_ids_outside_the_vocabulary_are_left_out() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata(CORE, eos_token_id=-1, bos_token_id=SIZE))
    assert (tokenizer.eos_ids, tokenizer.eos_token, tokenizer.bos_token) == ((), None, None)


def opened(**changes: Any) -> tuple[Tokenizer | None, list[str]]:
    checkpoint: Any = SimpleNamespace(gguf_metadata=gguf_metadata(CORE, **changes), report=LoadReport())
    return open_tokenizer(checkpoint), checkpoint.report.notes


def test_an_unsupported_gguf_tokenizer_leaves_the_model_usable() -> None:
    tokenizer, [note] = opened(model="llama", tokens=["<s>", "▁a"], merges=None)
    assert tokenizer is None and "'llama'" in note


def test_a_broken_gguf_tokenizer_is_still_an_error() -> None:
    assert isinstance(opened()[0], Tokenizer)
    for changes in ({"model": 5}, {"model": None}, {"merges": None}, {"tokens": "abc"}):
        with pytest.raises(TokenizerError):
            opened(**changes)
