"""Small vocabularies made on the spot, for tests that need to know every token's bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

CORPUS = ["the cat sat on the mat", "héllo wörld 😀 123", "def f(x):\n    return x + 1\n"]


class ByteTokens:
    """A tokenizer whose token i stands for the i-th of the given byte strings."""

    def __init__(self, tokens: list[bytes], special: tuple[int, ...] = ()) -> None:
        self.tokens, self.special = tokens, special

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def byte_level_core(special: tuple[str, ...] = ("<|end|>",), plain: tuple[str, ...] = ("<think>",)) -> Any:
    """A trained byte-level BPE with added tokens behind its vocabulary."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    core.add_special_tokens([AddedToken(token, special=True) for token in special])
    core.add_tokens([AddedToken(token, special=False) for token in plain])
    return core


def write_tokenizer(path: Path, core: Any, settings: dict[str, Any] | None = None) -> Path:
    """A directory that holds the tokenizer and its configuration."""
    path.mkdir(parents=True, exist_ok=True)
    core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    return path


def gguf_metadata(core: Any, **extra: Any) -> dict[str, Any]:
    """The same byte-level vocabulary as GGUF metadata, as a converter writes it."""
    model = json.loads(core.to_str())["model"]
    added = core.get_added_tokens_decoder()
    entries = {i: token for token, i in core.get_vocab(with_added_tokens=True).items()}
    kinds = {i: (3 if token.special else 4) for i, token in added.items()}
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [entries[i] for i in range(len(entries))],
        "token_type": [kinds.get(i, 1) for i in range(len(entries))],
        "merges": [" ".join(pair) for pair in model["merges"]],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (metadata | extra).items() if value is not None}
