"""The text that the searches look at: token ids in windows of one length."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from labkit.awq.source import DenseSource
from labkit.engine.open_tokenizer import open_tokenizer
from labkit.errors import ConfigError, TokenizerError

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

    Raises ConfigError if the text is too short, TokenizerError if the model has no tokenizer.
    """
    tokenizer = open_tokenizer(source)
    if tokenizer is None:
        cure = "Put the original model's tokenizer.json beside its weights."
        raise TokenizerError(f"{source.path.name} has no tokenizer to read the calibration text with.", cure=cure)
    ids = torch.tensor(tokenizer.encode(text, special=False))
    if len(ids) < windows * window:
        raise ConfigError(
            f"The calibration text has {len(ids)} tokens; {windows} windows of {window} need {windows * window}.",
            cure="Give a longer text with --calibration, or fewer windows.",
        )
    step = (len(ids) - window) // max(windows - 1, 1)
    return torch.stack([ids[i * step : i * step + window] for i in range(windows)])
