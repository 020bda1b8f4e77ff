"""Which bytes a vocabulary entry stands for.

Two ways of writing bytes as text are in use. *Byte-level* vocabularies (GPT-2, Llama 3, Qwen) give each
of the 256 bytes a printable character. *SentencePiece* vocabularies (Llama 2, Mistral) write characters as
they are, a space as U+2581, and a byte that is no character as <0xAB>.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from labkit.errors import TokenizerError

_SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def byte_level(entry: str) -> bytes:
    """Bytes of an entry of a byte-level vocabulary. Characters outside the alphabet stand for themselves."""
    if all(char in BYTE_ALPHABET for char in entry):
        return bytes(BYTE_ALPHABET[char] for char in entry)
    return entry.encode()


def sentence_piece(entry: str) -> bytes:
    """Bytes of an entry of a SentencePiece vocabulary."""
    byte = _BYTE_TOKEN.fullmatch(entry)
    return bytes([int(byte[1], 16)]) if byte else entry.replace(_SPACE_MARK, " ").encode()


def entry_decoder(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """The function for the "decoder" object of a tokenizer.json. Raises TokenizerError for a third way."""
    kinds = set(_kinds(decoder))
    if "ByteLevel" in kinds:
        return byte_level
    if kinds & {"Metaspace", "ByteFallback"}:
        return sentence_piece
    raise TokenizerError(
        f"The tokenizer decodes with {' + '.join(sorted(kinds)) or 'nothing'}.",
        cure="Use a checkpoint with a byte-level or SentencePiece vocabulary.",
    )


def _kinds(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    if decoder is None:
        return
    if decoder["type"] != "Sequence":
        yield decoder["type"]
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)
