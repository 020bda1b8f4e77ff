"""Does the output head share the embedding's weights? Wrongly answered, the model talks fluent nonsense."""

from __future__ import annotations

from typing import Any

import torch

from labkit.errors import CheckpointError
from labkit.model.checkpoint.base import Checkpoint, section

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
QUANTIZED_HEADS = ("lm_head.qweight", "lm_head.weight_packed")


def head_is_tied(checkpoint: Checkpoint) -> bool:
    """True if the embedding serves as the head, False if the file has a head of its own.

    A head that is in the file is used, whatever the config says (a contradiction is noted in the report).
    The text config's ``tie_word_embeddings`` counts before the wrapper's.
    Raises CheckpointError if the config wants a head and the file has none.
    """
    says_tied = _config_value(checkpoint.config)
    if any(checkpoint.has(name) for name in QUANTIZED_HEADS):
        return _own_head(checkpoint, says_tied)
    if checkpoint.has(HEAD):
        same = says_tied and torch.equal(checkpoint.tensor(HEAD), checkpoint.tensor(EMBEDDING))
        return same or _own_head(checkpoint, says_tied)
    if not says_tied:
        raise CheckpointError(
            f"{checkpoint.path.name} has no {HEAD}, and its config does not say that the embedding serves instead.",
            cure='Fetch the missing shard, or set "tie_word_embeddings": true in the text config if that is meant.',
        )
    return True


def _config_value(config: dict[str, Any]) -> bool:
    """Both architectures that labkit runs default to an own head."""
    inner = section(config, "text_config").get("tie_word_embeddings")
    return bool(config.get("tie_word_embeddings", False) if inner is None else inner)


def _own_head(checkpoint: Checkpoint, says_tied: bool) -> bool:
    if says_tied:
        checkpoint.report.note(
            "The config says that head and embedding are tied, but the file has a head of its own: that one is used."
        )
    return False
