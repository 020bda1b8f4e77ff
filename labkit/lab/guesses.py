"""What a reader has guessed at the start of a chapter, beside what came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def verdict(guess: Any, value: Any) -> str:
    """``right``, ``you said 3``, or ``no guess`` for None."""
    if guess is None:
        return "no guess"
    return "right" if guess == value else f"you said {guess}"


def compare(guesses: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    """A line for each thing that was seen: its name, its value, and the verdict on the guess of that name."""
    return "\n".join(f"{name}: {value:g}, {verdict(guesses.get(name), value)}" for name, value in seen.items())
