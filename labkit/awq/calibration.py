"""The text that the searches look at: token ids in windows of one length."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from labkit.awq.source import DenseSource
from labkit.engine.open_tokenizer import open_tokenizer
from labkit.errors import CheckpointError, ConfigError, TokenizerError

DEFAULT_TEXT = Path(__file__).resolve().parents[1] / "assets" / "text" / "addresses-1790-1914.txt"  # public domain


def read_text(path: Path | None) -> str:
    """A UTF-8 text file, by default the one of the package. Raises ConfigError if it cannot be read."""
    try:
        return (path or DEFAULT_TEXT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"The calibration text {path or DEFAULT_TEXT} cannot be read ({error})."
        raise ConfigError(message, cure="Give a UTF-8 text file with --calibration.") from error


def calibration_ids(source: DenseSource, text: str, windows: int, window: int) -> Tensor:
    """int64 [windows, window]: the text's first tokens, or windows spread evenly over a longer one.

    Raises ConfigError if the text is too short, and as ``text_ids`` does.
    """
    ids = torch.tensor(text_ids(source, text))
    if len(ids) < windows * window:
        raise ConfigError(
            f"The calibration text has {len(ids)} tokens; {windows} windows of {window} need {windows * window}.",
            cure="Give a longer text with --calibration, or fewer windows.",
        )
    step = (len(ids) - window) // max(windows - 1, 1)
    return torch.stack([ids[i * step : i * step + window] for i in range(windows)])


def text_ids(source: DenseSource, text: str) -> list[int]:
    """The tokens of a text. Raises TokenizerError if the model has no tokenizer, CheckpointError if that makes tokens
    which the model does not have."""
    tokenizer = open_tokenizer(source)
    if tokenizer is None:
        cure = "Put the original model's tokenizer.json beside its weights."
        raise TokenizerError(f"{source.path.name} has no tokenizer to read a text with.", cure=cure)
    ids, size = tokenizer.encode(text, special=False), source.model_config.vocab_size
    if ids and max(ids) >= size:
        message = f"The tokenizer of {source.path.name} makes the token {max(ids)}, but the vocabulary ends at {size}."
        raise CheckpointError(message, cure="Fetch the tokenizer again, from the same revision as the weights.")
    return ids
