"""Where a checkpoint keeps its tokenizer."""

from __future__ import annotations

from labkit.engine.gguf_tokenizer import MODEL
from labkit.engine.tokenizer import Tokenizer
from labkit.model.checkpoint import Checkpoint


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer, or None if it comes without one that labkit can build.

    The latter are GGUF files with another model than byte-level BPE; the report then says so, and token ids
    still work. Raises TokenizerError if the tokenizer is broken.
    """
    if any(key.startswith("tokenizer.ggml.") for key in checkpoint.gguf_metadata):
        model = checkpoint.gguf_metadata.get("tokenizer.ggml.model")
        if isinstance(model, str) and model != MODEL:
            checkpoint.report.note(f"The GGUF tokenizer {model!r} is not supported: give token ids instead of texts.")
            return None
        return Tokenizer.from_gguf(checkpoint.gguf_metadata)
    if checkpoint.tokenizer_files is None:
        return None
    return Tokenizer.from_directory(
        checkpoint.tokenizer_files, config=checkpoint.config, generation_config=checkpoint.generation_config
    )
