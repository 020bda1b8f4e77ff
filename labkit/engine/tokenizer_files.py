"""Read the tokenizer of a checkpoint directory: tokenizer.json and the small files around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from labkit.errors import TokenizerError

# A chat with one of these vocabularies ends at either token, whether or not generation_config.json says so.
_QWEN_MARKS = ("<|im_end|>", "<|endoftext|>", "<think>")


@dataclass(frozen=True)
class TokenizerParts:
    """What any source of a tokenizer must give.

    core: splits text into ids. special_strings: bos_token, eos_token, pad_token, unk_token, where known.
    templates: chat templates by name ("default" is the usual one). eos_ids: tokens that end an answer.
    add_bos: whether a prompt starts with bos_token; None leaves it to the core's post-processor.
    """

    core: tokenizers.Tokenizer
    special_strings: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    add_bos: bool | None = None


def read_directory(
    path: Path, config: Mapping[str, Any] | None = None, generation_config: Mapping[str, Any] | None = None
) -> TokenizerParts:
    """Parts from a directory. The two configs are read from there unless they are given.

    Raises TokenizerError if tokenizer.json is missing or one of the files is broken.
    """
    settings = _read_json(path / "tokenizer_config.json")
    core = _read_core(path / "tokenizer.json")
    _add_missing_tokens(core, _declared_tokens(path / "tokenizer_config.json", settings))
    strings = _special_strings(settings)
    config = _read_json(path / "config.json") if config is None else config
    generation_config = _read_json(path / "generation_config.json") if generation_config is None else generation_config
    add_bos = settings.get("add_bos_token")
    return TokenizerParts(
        core=core,
        special_strings=strings,
        templates=_read_templates(path, settings),
        eos_ids=end_tokens(core, strings.get("eos_token"), generation_config, config, _text_config(config)),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
    )


def end_tokens(core: tokenizers.Tokenizer, eos_token: str | None, *configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Every token that ends an answer, without repeats: eos_token_id of the configs, the tokenizer's own, Qwen's.

    Ids outside the vocabulary are left out: no answer can hold them. Raises TokenizerError for what is no id.
    """
    found = [token for config in configs for token in _declared_ends(config)]
    own = [] if eos_token is None else [core.token_to_id(eos_token)]
    marks = [core.token_to_id(mark) for mark in _QWEN_MARKS]
    qwen = [] if None in marks else marks[:2]
    size = max(core.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return tuple(dict.fromkeys(token for token in [*found, *own, *qwen] if token is not None and 0 <= token < size))


def _declared_ends(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise TokenizerError(
            f"The checkpoint has eos_token_id = {value!r}, which is no token id or list of them.",
            cure="Download generation_config.json and config.json again.",
        )
    return ids


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else {}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file, {} if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise _broken(path, error) from error
    if not isinstance(value, dict):
        raise _broken(path, "it holds no object")
    return value


def _broken(path: Path, reason: object) -> TokenizerError:
    return TokenizerError(f"{path.name} cannot be read: {reason}.", cure=f"Download {path} again.")


def _read_core(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise TokenizerError(
            f"{path.parent} has no tokenizer.json.",
            cure="Copy it from the original model, or give token ids instead of texts.",
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise _broken(path, error) from error


def _declared_tokens(path: Path, settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """added_tokens_decoder of tokenizer_config.json, by ascending id."""
    declared = settings.get("added_tokens_decoder")
    declared = {} if declared is None else declared
    if not isinstance(declared, dict) or not all(_is_token(key, value) for key, value in declared.items()):
        raise _broken(path, "added_tokens_decoder does not map token ids to tokens with a content")
    return {int(key): declared[key] for key in sorted(declared, key=int)}


def _is_token(key: str, value: Any) -> bool:
    is_id = key.isdecimal() and len(key) < 10
    return is_id and isinstance(value, dict) and isinstance(value.get("content"), str)


def _add_missing_tokens(core: tokenizers.Tokenizer, declared: Mapping[int, Mapping[str, Any]]) -> None:
    """Older checkpoints name some special tokens in tokenizer_config.json only."""
    for token_id, token in declared.items():
        if core.token_to_id(token["content"]) is None:
            core.add_tokens([_added_token(token)])
        if core.token_to_id(token["content"]) != token_id:
            raise TokenizerError(
                f"Token {token['content']!r} is {token_id} in tokenizer_config.json but not in tokenizer.json.",
                cure="Take both files from the same checkpoint.",
            )


def _added_token(token: Mapping[str, Any]) -> tokenizers.AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return tokenizers.AddedToken(token["content"], **{flag: bool(token.get(flag)) for flag in flags})


def _special_strings(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special strings, which stand there as text or as {"content": text}."""
    values = {name: settings.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file of its own goes before the configuration."""
    alone = path / "chat_template.jinja"
    if alone.exists():
        return {"default": _read_text(alone)}
    stored = _read_json(path / "chat_template.json").get("chat_template") or settings.get("chat_template")
    return _named_templates(path, stored)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _broken(path, error) from error


def _named_templates(path: Path, stored: Any) -> dict[str, str]:
    """Stored is one template, a list of {"name", "template"}, or None."""
    stored = [] if stored is None else [{"name": "default", "template": stored}] if isinstance(stored, str) else stored
    if not isinstance(stored, list) or not all(_is_template(entry) for entry in stored):
        raise _broken(path / "tokenizer_config.json", "chat_template is neither a text nor a list of named texts")
    return {entry["name"]: entry["template"] for entry in stored}


def _is_template(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("name", "template"))
