"""Text to token ids and back, whatever file the vocabulary came from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from labkit.engine.gguf_tokenizer import read_gguf
from labkit.engine.token_bytes import entry_decoder
from labkit.engine.tokenizer_files import TokenizerParts, read_directory
from labkit.errors import RequestError


class Tokenizer:
    """A vocabulary with its special tokens, end tokens and chat templates.

    vocab_size: one more than the largest id that has a token. A head may have more rows; they mean nothing.
    eos_ids: the tokens that end an answer. special_strings: bos_token, eos_token, ... as texts.
    templates: the chat templates by name.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._core = parts.core
        self._add_bos = parts.add_bos
        self._added = parts.core.get_added_tokens_decoder()
        self._entry_bytes = entry_decoder(_description(parts.core.decoder))
        self._bytes: dict[int, bytes] = {}
        self.eos_ids = parts.eos_ids
        self.special_strings = dict(parts.special_strings)
        self.templates = dict(parts.templates)
        self.vocab_size = max(parts.core.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_directory(
        cls,
        path: Path,
        *,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ) -> Tokenizer:
        """The tokenizer of a checkpoint directory; the configs are read from there unless given.

        Raises TokenizerError if the directory has no usable tokenizer.
        """
        return cls(read_directory(path, config, generation_config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer in the metadata of a GGUF file (key -> plain value). Raises TokenizerError."""
        return cls(read_gguf(metadata))

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a document, if the model has one."""
        return self.special_strings.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The text of the tokenizer's own end token."""
        return self.special_strings.get("eos_token")

    @property
    def chat_template(self) -> str | None:
        """The usual chat template, None for a model that has none."""
        return self.templates.get("default")

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text as it stands: nothing is put before or behind it.

        special: read "<|im_end|>" and its like as the tokens they name; False reads them as plain text.
        Raises RequestError for half of a surrogate pair, which is no character.
        """
        core = self._core if special else self._plain_core
        return core.encode(_checked(text), add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a whole prompt: as `encode`, with the begin token in front if the model asks for it."""
        if self._add_bos is None:
            return self._core.encode(_checked(text), add_special_tokens=True).ids
        bos = self._core.token_to_id(self.bos_token) if self._add_bos and self.bos_token is not None else None
        return ([] if bos is None else [bos]) + self.encode(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of token ids: their bytes joined, then read as UTF-8 with U+FFFD for what is none.

        The ids may continue another text, so a SentencePiece vocabulary's leading space stays.
        """
        shown = (i for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, b"" for an id without a token."""
        if token_id not in self._bytes:
            self._bytes[token_id] = self._look_up(token_id)
        return self._bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """True for tokens that steer the model and are no part of its text, such as <|im_end|>."""
        added = self._added.get(token_id)
        return added is not None and added.special

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].content.encode()
        entry = self._core.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return b"" if entry is None else self._entry_bytes(entry)

    @cached_property
    def _plain_core(self) -> tokenizers.Tokenizer:
        """The same vocabulary with no token that is matched whole."""
        described = json.loads(self._core.to_str())
        return tokenizers.Tokenizer.from_str(json.dumps(described | {"added_tokens": [], "post_processor": None}))


def _description(decoder: tokenizers.decoders.Decoder | None) -> dict[str, Any] | None:
    """The decoder as tokenizer.json writes it; the pickle state is the one place where the library shows it."""
    return None if decoder is None else json.loads(decoder.__getstate__())


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The text holds a lone surrogate, {text[error.start]!r}, at character {error.start}.",
            cure="Decode its source with errors='replace' first.",
        ) from error
    return text
