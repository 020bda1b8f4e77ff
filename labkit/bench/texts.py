"""The text that perplexities are taken on unless another is named."""

from __future__ import annotations

from pathlib import Path

DEFAULT_TEXT = Path(__file__).resolve().parents[1] / "assets" / "text" / "lincoln-1862.txt"  # public domain
