"""Build a byte-level BPE tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from labkit.engine.tokenizer_files import TokenizerParts, end_tokens
from labkit.errors import TokenizerError

MODEL = "gpt2"  # GGUF's name for byte-level BPE
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type: matched whole in the text, before the BPE

# How a text is cut into words, inside which the BPE merges. Published with the models' own tokenizer.json files.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2, _SMOLLM, _QWEN2, _LLAMA3 = "gpt-2", "smollm", "qwen2", "llama-bpe"
_WORD_RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "qwen2": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def read_gguf(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Parts from GGUF metadata (key -> plain Python value).

    Raises TokenizerError, naming it, for a model other than "gpt2" (byte-level BPE), an unknown
    pre-tokenizer, or a key that is missing or of another type.
    """
    rule = _word_rule(metadata)
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise _broken("ggml.tokens", tokens, "a vocabulary")
    core = tokenizers.Tokenizer(_bpe(tokens, _strings(metadata, "merges"), ignore_merges=rule == _LLAMA3))
    core.pre_tokenizer = _pre_tokenizer(rule)
    core.decoder = decoders.ByteLevel()
    if rule == _QWEN2:
        core.normalizer = normalizers.NFC()
    _mark_added(core, tokens, _token_types(metadata))
    strings = _special_strings(metadata, tokens)
    return TokenizerParts(
        core=core,
        special_strings=strings,
        templates=_templates(metadata),
        eos_ids=end_tokens(core, strings.get("eos_token"), *_declared_ends(metadata)),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", rule == _LLAMA3)),
    )


def _require(metadata: Mapping[str, Any], name: str) -> Any:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        raise TokenizerError(f"The GGUF file has no tokenizer.ggml.{name}.", cure="Convert the model again.")
    return value


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    # Checked here because the library panics on other types, past every `except Exception`.
    value = _require(metadata, name)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _broken(f"ggml.{name}", value, "a list of strings")
    return value


def _token_types(metadata: Mapping[str, Any]) -> list[int]:
    value = metadata.get("tokenizer.ggml.token_type")
    if value is not None and not isinstance(value, list):
        raise _broken("ggml.token_type", value, "a list of numbers")
    return value or []


def _broken(name: str, value: Any, expected: str) -> TokenizerError:
    return TokenizerError(
        f"The GGUF key tokenizer.{name} is {reprlib.repr(value)}, not {expected}.", cure="Download the file again."
    )


def _word_rule(metadata: Mapping[str, Any]) -> str:
    model, rule = _require(metadata, "model"), metadata.get("tokenizer.ggml.pre", "default")
    if model != MODEL or not isinstance(rule, str) or rule not in _WORD_RULES:
        raise TokenizerError(
            f"The GGUF tokenizer is {model!r} with pre-tokenizer {rule!r}.",
            cure=f"Supported is {MODEL!r} with {', '.join(_WORD_RULES)}; or use the safetensors checkpoint.",
        )
    return _WORD_RULES[rule]


def _bpe(tokens: list[str], merges: list[str], ignore_merges: bool) -> models.BPE:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
        return models.BPE(vocabulary, pairs, ignore_merges=ignore_merges)
    except Exception as error:  # a merge that is no pair; the library raises plain Exception, for unknown tokens
        raise TokenizerError(f"The GGUF vocabulary is broken: {error}.", cure="Download the file again.") from error


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    if rule == _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rule == _SMOLLM:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = Regex(_QWEN2_WORDS if rule == _QWEN2 else _LLAMA3_WORDS)
    split = pre_tokenizers.Split(words, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _mark_added(core: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tell the core which of its entries are matched whole. They keep their ids."""
    for token, kind in zip(tokens, types, strict=False):  # a file without types has no such tokens
        if kind in (_CONTROL, _USER_DEFINED):
            core.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])


def _special_strings(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {name: _token_id(metadata, key) for name, key in names.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}


def _token_id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _broken(f"ggml.{key}_token_id", value, "a token id")
    return value


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise _broken("chat_template", template, "a text")
    return {} if template is None else {"default": template}


def _declared_ends(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    # eot and eom end a turn where eos ends a document; a chat model stops at any of them.
    return [{"eos_token_id": _token_id(metadata, name)} for name in ("eos", "eot", "eom")]
