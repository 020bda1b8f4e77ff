"""The most likely next tokens as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from labkit.engine.sampler import log_softmax
from labkit.engine.tokenizer import Tokenizer
from labkit.lab.picture import SvgPicture

ROW, FONT, MARGIN = 26, 13, 8  # pixels
LABEL, BAR, FIGURE = 150, 340, 70  # widths in pixels: the token, a bar of probability 1, its number
COLOUR = "#56b4e9"
MAX_LETTERS = 16


@dataclass(frozen=True)
class TokenShare:
    """A token id, its text with blanks made visible, and its probability in [0, 1]."""

    token: int
    text: str
    probability: float


def top_tokens(tokenizer: Tokenizer, logits: Any, count: int = 5) -> list[TokenShare]:
    """The most likely tokens of one row of logits, best first; equals stand in id order.

    logits: fp32 [V] (a tensor on the CPU or an array). Rows of the head beyond the tokenizer take no part,
    as in the engine. The probability is softmax(logits) at temperature 1.
    """
    row = np.asarray(logits, dtype=np.float64)[: tokenizer.vocab_size]
    scores = np.exp(log_softmax(row))
    best = np.argsort(-scores, kind="stable")[:count].tolist()
    return [TokenShare(token, token_text(tokenizer, token), float(scores[token])) for token in best]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """What a token stands for: ``·`` is a blank, ``↵`` a new line, ``�`` a part of a character."""
    return visible(tokenizer.decode([token], skip_special=False))


def visible(text: str) -> str:
    """The text with blanks and line ends as signs that can be seen."""
    return text.replace(" ", "·").replace("\n", "↵").replace("\t", "→")


def top_tokens_picture(shares: Sequence[TokenShare]) -> SvgPicture:
    """One bar for each token, its length the probability."""
    words = ", ".join(f"{share.text} {share.probability:.1%}" for share in shares)
    lines = (f"{share.text:{MAX_LETTERS}} {share.probability:6.1%} {_bar(share)}".rstrip() for share in shares)
    return SvgPicture(svg=_svg(shares), alt=f"Bars: the most likely next tokens. {words}.", text="\n".join(lines))


def _bar(share: TokenShare) -> str:
    return "#" * round(40 * share.probability)


def _svg(shares: Sequence[TokenShare]) -> str:
    width, height = LABEL + BAR + FIGURE + 2 * MARGIN, ROW * len(shares) + 2 * MARGIN
    rows = "".join(_row(MARGIN + i * ROW, share) for i, share in enumerate(shares))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="{FONT}"><rect width="100%" height="100%" fill="white"/>{rows}</svg>'
    )


def _row(y: float, share: TokenShare) -> str:
    middle, length, left = y + ROW / 2, BAR * share.probability, MARGIN + LABEL
    label = share.text if len(share.text) <= MAX_LETTERS else share.text[: MAX_LETTERS - 1] + "…"
    return (
        f'<text x="{left - 8}" y="{middle:g}" text-anchor="end" dy="0.35em"'
        f' font-family="monospace">{escape(label)}</text>'
        f'<rect x="{left}" y="{y + 4:g}" width="{length:.0f}" height="{ROW - 8}" fill="{COLOUR}"/>'
        f'<text x="{left + length + 6:.0f}" y="{middle:g}" dy="0.35em">{share.probability:.1%}</text>'
    )
