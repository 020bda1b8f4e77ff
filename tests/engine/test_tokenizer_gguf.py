"""Tokenizers from GGUF metadata: the same ids as the tokenizer.json that the file was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from helpers.vocabulary import byte_level_core, gguf_metadata, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from labkit.engine.tokenizer import Tokenizer
from labkit.errors import TokenizerError

TEXTS = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|end|>", "<think>", "\n\n", "   ", "2024", "x=1", "don't", "naïve", "日本", "😀", "é"]
    )
).map("".join)
CORE = byte_level_core(special=("<|end|>", "<s>"))


def test_vocabulary_merges_and_added_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    original = Tokenizer.from_directory(write_tokenizer(tmp_path, CORE))
    rebuilt = Tokenizer.from_gguf(gguf_metadata(CORE))

    @given(TEXTS)
    def same(text: str) -> None:
        assert rebuilt.encode(text) == original.encode(text)
        assert rebuilt.encode(text, special=False) == original.encode(text, special=False)

    same()
    assert rebuilt.vocab_size == original.vocab_size
    for token in range(original.vocab_size):
        assert rebuilt.token_bytes(token) == original.token_bytes(token)
        assert rebuilt.is_special(token) == original.is_special(token)


def words(rule: str, text: str) -> list[str]:
    """How the rule cuts a text: every word is one token in a vocabulary without merges of other bytes."""
    tokenizer = Tokenizer.from_gguf(gguf_metadata(CORE, pre=rule))
    pieces = tokenizer._core.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in pieces]


@pytest.mark.parametrize(
    "rule, cut",
    [
        ("gpt-2", ["I", "'ll", " buy", " 2024", " 日本", "!!", "\n", "\n", "OK"]),
        ("smollm", ["I", "'ll", " buy", " ", "2", "0", "2", "4", " 日本", "!!", "\n", "\n", "OK"]),
        ("qwen2", ["I", "'ll", " buy", " ", "2", "0", "2", "4", " 日本", "!!\n\n", "OK"]),
        ("llama-bpe", ["I", "'ll", " buy", " ", "202", "4", " 日本", "!!\n\n", "OK"]),
    ],
)
def test_pre_tokenizers_cut_words_as_published(rule: str, cut: list[str]) -> None:
    assert words(rule, "I'll buy 2024 日本!!\n\nOK") == cut


def test_qwen2_normalizes_to_composed_characters() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata(CORE, pre="qwen2"))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9"


@pytest.mark.parametrize(
    "rule, asked, begins",
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama3", None, True), ("llama3", False, False)],
)
def test_begin_token(rule: str, asked: bool | None, begins: bool) -> None:
    bos = CORE.token_to_id("<s>")
    tokenizer = Tokenizer.from_gguf(gguf_metadata(CORE, pre=rule, bos_token_id=bos, add_bos_token=asked))
    assert tokenizer.bos_token == "<s>"
    assert tokenizer.encode_prompt("a") == ([bos] if begins else []) + tokenizer.encode("a")


def test_end_tokens_and_template() -> None:
    end, turn = CORE.token_to_id("<|end|>"), CORE.token_to_id("<s>")
    metadata = gguf_metadata(CORE, eos_token_id=end, eot_token_id=turn) | {"tokenizer.chat_template": "T"}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert (tokenizer.eos_ids, tokenizer.eos_token, tokenizer.chat_template) == ((end, turn), "<|end|>", "T")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "llama"}, "'llama'"),
        ({"pre": "deepseek-v3"}, "'deepseek-v3'"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"merges": ["zz qq"]}, "broken"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_gguf(gguf_metadata(CORE, **changes))
    assert caught.value.cure


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    fields = GGUFReader(smollm2_path).fields
    wanted = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    return Tokenizer.from_gguf(wanted)


def test_facts_of_smollm2(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.eos_ids, smollm2.eos_token) == (49_152, (2,), "<|im_end|>")
    ids = [1780, 314, 216, 33, 34, 1232, 216, 35, 32, 47, 198, 2]
    assert smollm2.encode_prompt("What is 12 + 30?\n<|im_end|>") == ids
    assert smollm2.decode(ids) == "What is 12 + 30?\n"
    assert smollm2.encode("\n\n0") == [1116, 32]  # digits are split off first, so the two newlines are one token


@pytest.mark.slow
def test_smollm2_gives_the_ids_of_transformers(smollm2: Tokenizer, smollm2_path: Path) -> None:
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # Its import of GGUF leaves out SmolLM2's own first step, which gives every digit a word.
    digits = pre_tokenizers.Digits(individual_digits=True)
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, oracle.backend_tokenizer.pre_tokenizer])

    @settings(max_examples=500, deadline=None)
    @given(TEXTS)
    def same(text: str) -> None:
        ids = smollm2.encode_prompt(text)
        assert ids == oracle(text).input_ids
        assert smollm2.decode(ids, skip_special=False) == oracle.decode(ids)

    same()
