"""Checks of chapter 00: a greedy loop over ``llm.logits``."""

from __future__ import annotations

import random
from collections.abc import Callable

from labkit.engine.llm import LLM

GreedyLoop = Callable[[LLM, list[int], int], list[int]]
TIE = 1e-3  # logits closer than this may change places when sums are taken in another order


def check_greedy(loop: GreedyLoop, llm: LLM, seed: int | None = None) -> str:
    """Judge ``loop(llm, ids, count)``, which should return the ``count`` most likely next tokens, one after another.

    The prompts are random and drawn afresh, some across the edge of a page; ``seed`` repeats a run of the check.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for length, count in ((1, 1), (2, 3), (17, 4), (63, 3), (rng.randint(65, 90), 2)):
        _check_one(loop, llm, [rng.randrange(llm.engine.num_valid) for _ in range(length)], count)
    return "Right: the same tokens as the engine's own at temperature 0."


def _check_one(loop: GreedyLoop, llm: LLM, ids: list[int], count: int) -> None:
    given = list(ids)
    tokens = loop(llm, given, count)
    assert given == ids, "Your loop has changed the caller's list. Work on a copy: ids = list(ids)."
    _check_form(tokens, ids, count)
    assert all(0 <= token < llm.engine.num_valid for token in tokens), "A token id lies beyond the vocabulary."
    for i, token in enumerate(tokens):
        row = llm.logits(ids + tokens[:i])[-1][: llm.engine.num_valid]
        assert float(row.max() - row[token]) < TIE, _hint(i, token, int(row.argmax()), len(ids))


def _check_form(tokens: list[int], ids: list[int], count: int) -> None:
    assert isinstance(tokens, list) and all(type(token) is int for token in tokens), (
        "Return a list of plain numbers: logits(...)[-1].argmax() is a tensor, int(...) makes a number of it."
    )
    assert tokens[: len(ids)] != ids or len(tokens) == count, "Return the new tokens only, without the prompt."
    assert len(tokens) == count, f"You were asked for {count} tokens and returned {len(tokens)}."


def _hint(place: int, token: int, best: int, length: int) -> str:
    if place == 0:
        return (
            f"After a prompt of {length} tokens the most likely token is {best}, you chose {token}. "
            "The last row of the logits, [-1], belongs to the next token."
        )
    return (
        f"New token number {place + 1} should be {best}, you chose {token}. "
        "Append each new token before you ask for the next logits."
    )
