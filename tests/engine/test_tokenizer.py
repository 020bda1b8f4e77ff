"""Tokenizer: text to ids and back, special tokens, end tokens, and the errors of broken directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from helpers.vocabulary import byte_level_core, write_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

import labkit
from labkit.engine.tokenizer import Tokenizer
from labkit.errors import RequestError, TokenizerError

TINY = Path(labkit.__file__).parent / "assets" / "labkit-tiny"
ENDOFTEXT, IM_START, IM_END, TOOL_CALL, THINK = 8183, 8184, 8185, 8186, 8190
TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(["<|im_end|>", "<think>", "\n\n", "  ", "12345", "don't", "naïve", "日本語", "👩‍👩‍👧", "é", "\t"])
).map("".join)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_directory(TINY)


@pytest.fixture(scope="module")
def tiny_oracle() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


@given(TEXTS)
def test_ids_are_those_of_transformers(tiny: Tokenizer, tiny_oracle: Any, text: str) -> None:
    assert tiny.encode(text) == tiny_oracle(text, add_special_tokens=False).input_ids
    assert tiny.encode_prompt(text) == tiny_oracle(text).input_ids


@given(st.lists(st.integers(0, 8191), max_size=40), st.booleans())
def test_decode_is_that_of_transformers(tiny: Tokenizer, tiny_oracle: Any, ids: list[int], skip: bool) -> None:
    assert tiny.decode(ids, skip_special=skip) == tiny_oracle.decode(ids, skip_special_tokens=skip)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer without labkit-tiny's NFC normalizer."""
    return Tokenizer.from_directory(write_tokenizer(tmp_path_factory.mktemp("exact"), byte_level_core()))


@given(TEXTS)
def test_text_survives_the_round_trip(exact: Tokenizer, text: str) -> None:
    assert exact.decode(exact.encode(text), skip_special=False) == text
    assert exact.decode(exact.encode(text, special=False)) == text


@given(st.lists(st.integers(0, 8191), max_size=30), st.integers(0, 30))
def test_bytes_of_the_parts_join_to_the_bytes_of_the_whole(tiny: Tokenizer, ids: list[int], cut: int) -> None:
    joined = b"".join(map(tiny.token_bytes, ids))
    assert joined.decode("utf-8", "replace") == tiny.decode(ids, skip_special=False)
    assert joined == b"".join(map(tiny.token_bytes, ids[:cut])) + b"".join(map(tiny.token_bytes, ids[cut:]))


def test_every_byte_has_its_token(tiny: Tokenizer) -> None:
    single = {tiny.token_bytes(i) for i in range(tiny.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= single


def test_special_tokens_are_parsed_only_if_asked(tiny: Tokenizer) -> None:
    text = "a<|im_end|><think>"
    assert tiny.encode(text)[-2:] == [IM_END, THINK]
    plain = tiny.encode(text, special=False)
    assert max(plain) < ENDOFTEXT
    assert tiny.decode(plain) == text


def test_special_tokens_are_left_out_of_the_text(tiny: Tokenizer) -> None:
    ids = [IM_START, *tiny.encode("hi"), THINK, IM_END]
    assert tiny.decode(ids) == "hi<think>"
    assert tiny.decode(ids, skip_special=False) == "<|im_start|>hi<think><|im_end|>"
    assert [tiny.is_special(i) for i in (IM_START, THINK, 5, 10**6)] == [True, False, False, False]


def test_half_characters_become_replacement_characters(tiny: Tokenizer) -> None:
    ids = [next(i for i in range(8183) if tiny.token_bytes(i) == bytes([b])) for b in (0xF0, 0x9F, 0x61, 0xFF)]
    assert tiny.decode(ids) == "\ufffda\ufffd"


@pytest.mark.parametrize("token_id", [-1, 8192, 248_319])
def test_ids_without_a_token_have_no_bytes(tiny: Tokenizer, token_id: int) -> None:
    assert tiny.token_bytes(token_id) == b""
    assert tiny.decode([token_id]) == ""


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff ok"])
@pytest.mark.parametrize("method", ["encode", "encode_prompt"])
def test_lone_surrogates_are_a_typed_error(tiny: Tokenizer, method: str, text: str) -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        getattr(tiny, method)(text)


def test_facts_of_labkit_tiny(tiny: Tokenizer) -> None:
    assert tiny.vocab_size == 8192
    assert tiny.eos_ids == (IM_END, ENDOFTEXT)
    assert (tiny.bos_token, tiny.eos_token) == (None, "<|im_end|>")
    assert tiny.chat_template is not None and "add_generation_prompt" in tiny.chat_template


def test_qwen_vocabulary_ends_at_both_tokens_without_any_config() -> None:
    tokenizer = Tokenizer.from_directory(TINY, config={}, generation_config={})
    assert set(tokenizer.eos_ids) == {IM_END, ENDOFTEXT}


def test_configs_that_are_given_go_before_those_of_the_directory() -> None:
    tokenizer = Tokenizer.from_directory(TINY, config={"text_config": {"eos_token_id": 4}}, generation_config={})
    assert tokenizer.eos_ids == (4, IM_END, ENDOFTEXT)


def test_end_tokens_come_from_all_three_files_without_repeats(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_core(), {"eos_token": {"content": "<|end|>"}})
    (tmp_path / "config.json").write_text('{"eos_token_id": 7, "text_config": {"eos_token_id": 9}}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 7]}')
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.eos_ids == (8, 7, 9, tokenizer.encode("<|end|>")[0])


def test_tokens_that_only_the_configuration_declares_are_added(tmp_path: Path) -> None:
    core = byte_level_core()
    size, known = core.get_vocab_size(), core.token_to_id("<|end|>")
    contents = {size: "<|later|>", known: "<|end|>"}
    declared = {str(token_id): {"content": content, "special": True} for token_id, content in contents.items()}
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path, core, {"added_tokens_decoder": declared}))
    assert tokenizer.encode("a<|later|>")[-1] == size
    assert tokenizer.vocab_size == size + 1 and tokenizer.is_special(size)


def test_contradicting_token_ids_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, byte_level_core(), {"added_tokens_decoder": {"9999": {"content": "<|later|>"}}})
    with pytest.raises(TokenizerError, match="9999"):
        Tokenizer.from_directory(tmp_path)


def with_begin_token() -> Any:
    core = byte_level_core(special=("<s>", "<|end|>"))
    begin = core.token_to_id("<s>")
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return core


@pytest.mark.parametrize("add_bos, expected", [(None, True), (True, True), (False, False)])
def test_prompt_begins_as_the_model_asks(tmp_path: Path, add_bos: bool | None, expected: bool) -> None:
    settings = {"bos_token": "<s>"} | ({} if add_bos is None else {"add_bos_token": add_bos})
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path, with_begin_token(), settings))
    begin, bare = tokenizer.encode("<s>"), tokenizer.encode("the cat")
    assert tokenizer.encode_prompt("the cat") == (begin if expected else []) + bare


def test_begin_token_is_added_where_only_the_configuration_asks(tmp_path: Path) -> None:
    core = byte_level_core(special=("<s>",))
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path, core, {"bos_token": "<s>", "add_bos_token": True}))
    assert tokenizer.encode_prompt("a") == tokenizer.encode("<s>a")


def sentence_piece_core(decoder: Any) -> Any:
    single_bytes = {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    pieces = {"<unk>": 0} | single_bytes | {"\u2581": 257, "a": 258, "\u2581b": 259}
    core = tokenizers.Tokenizer(models.BPE(pieces, [], byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoder
    return core


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ],
)
def test_sentence_piece_vocabularies_give_their_bytes(tmp_path: Path, decoder: Any) -> None:
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path, sentence_piece_core(decoder)))
    assert [tokenizer.token_bytes(i) for i in (0xF0 + 1, 258, 259)] == [b"\xf0", b"a", b" b"]
    assert tokenizer.decode(tokenizer.encode("a 😀a")) == " a 😀a"


def test_other_vocabularies_are_refused_by_name(tmp_path: Path) -> None:
    core = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece()
    with pytest.raises(TokenizerError, match="WordPiece"):
        Tokenizer.from_directory(write_tokenizer(tmp_path, core))


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer.json", '{"version": "1.0", "trunc', "tokenizer.json cannot be read"),
        ("tokenizer_config.json", '{"eos_token": ', "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json cannot be read"),
    ],
)
def test_broken_directories_are_typed_errors(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    write_tokenizer(tmp_path, byte_level_core())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_directory(tmp_path)
    assert caught.value.cure


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    "settings, files, templates",
    [
        ({}, {}, {}),
        ({"chat_template": "A"}, {}, {"default": "A"}),
        ({"chat_template": NAMED}, {}, {"default": "D", "tool_use": "T"}),
        ({"chat_template": "A"}, {"chat_template.json": json.dumps({"chat_template": "B"})}, {"default": "B"}),
        ({"chat_template": "A"}, {"chat_template.jinja": "C", "chat_template.json": "{}"}, {"default": "C"}),
    ],
)
def test_chat_templates_are_found_where_checkpoints_put_them(
    tmp_path: Path, settings: dict[str, Any], files: dict[str, str], templates: dict[str, str]
) -> None:
    write_tokenizer(tmp_path, byte_level_core(), settings)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.templates == templates
    assert tokenizer.chat_template == templates.get("default")
