"""Where a checkpoint keeps its tokenizer."""

from __future__ import annotations

from labkit.engine.tokenizer import Tokenizer
from labkit.model.checkpoint import Checkpoint


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer, or None if it comes without one. Raises TokenizerError if it is broken."""
    if any(key.startswith("tokenizer.ggml.") for key in checkpoint.gguf_metadata):
        return Tokenizer.from_gguf(checkpoint.gguf_metadata)
    if checkpoint.tokenizer_files is None:
        return None
    return Tokenizer.from_directory(
        checkpoint.tokenizer_files, config=checkpoint.config, generation_config=checkpoint.generation_config
    )
