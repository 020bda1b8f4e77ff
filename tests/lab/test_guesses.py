"""Guesses are judged one by one, and whoever has not guessed is not told to be wrong."""

from __future__ import annotations

import pytest

from labkit.lab.guesses import compare, verdict


@pytest.mark.parametrize(("guess", "words"), [(None, "no guess"), (4, "right"), (4.0, "right"), (0, "you said 0")])
def test_verdict(guess: float | None, words: str) -> None:
    assert verdict(guess, 4) == words


def test_compare_goes_by_what_was_seen() -> None:
    assert compare({"a": None, "b": 2, "c": 1}, {"a": 0.125, "b": 2}) == "a: 0.125, no guess\nb: 2, right"
