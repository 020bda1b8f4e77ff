"""The checks of chapter 11 accept what is right, and say what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.lab.exercises.sparse_prefill import check_choice, check_pooled, check_sampled


def pooled(q: Tensor, keys: Tensor) -> Tensor:
    return keys.mean(1) @ q.mean(0) / q.shape[1] ** 0.5


def shares(q: Tensor, keys: Tensor) -> Tensor:
    logits = torch.einsum("rd,pkd->rpk", q, keys) / q.shape[1] ** 0.5
    return logits.flatten(1).softmax(-1).view(logits.shape).sum(-1)


def sampled(q: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
    return shares(q[rows], keys).amax(0)


def choice(scores: Tensor, sink: int, recent: int, mass: float) -> list[int]:
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[:sink] = kept[len(scores) - recent :] = True
    for page in scores.argsort(descending=True).tolist():
        if scores[kept].sum() >= mass * scores.sum():
            break
        kept[page] = True
    return list(kept.nonzero()[:, 0].tolist())


def test_right_answers_pass(seed: int) -> None:
    assert check_pooled(pooled, seed).startswith("Right")
    assert check_sampled(sampled, seed).startswith("Right")
    assert check_choice(choice, seed).startswith("Right")


def test_a_choice_may_be_a_tensor(seed: int) -> None:
    assert check_choice(lambda *given: torch.tensor(choice(*given)), seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda q, keys: 1.0, "Return a tensor"),
        (lambda q, keys: keys.mean(1), "a score for each"),
        (lambda q, keys: pooled(q, keys) / 0, "not finite"),
        (lambda q, keys: keys.mean(1) @ q.mean(0), "Which two vectors"),
        (lambda q, keys: pooled(q[:1], keys), "Which two vectors"),
        (lambda q, keys: pooled(q, keys[:, :1]), "Which two vectors"),
    ],
)
def test_wrong_pooled_scores_get_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_pooled(wrong, seed)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda q, keys, rows: None, "Return a tensor"),
        (lambda q, keys, rows: shares(q, keys).amax(0), "Which rows are asked"),
        (lambda q, keys, rows: shares(q[rows], keys).mean(0), "What does an average"),
        (lambda q, keys, rows: shares(q[rows], keys).sum(0), "What does a sum"),
        (lambda q, keys, rows: shares(q[rows] * 4, keys).amax(0), "Over which keys"),
        (lambda q, keys, rows: shares(q[rows], keys.mean(1, keepdim=True)).amax(0), "Over which keys"),
    ],
)
def test_wrong_sampled_scores_get_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_sampled(wrong, seed)


def without_the_given(scores: Tensor, sink: int, recent: int, mass: float) -> list[int]:
    """Adds anchors up to the mass, as if sink and recent pages held nothing."""
    inner = scores.clone()
    inner[:sink] = inner[len(scores) - recent :] = 0
    return sorted({*choice(inner, 0, 0, mass), *range(sink), *range(len(scores) - recent, len(scores))})


def lowest_first(scores: Tensor, sink: int, recent: int, mass: float) -> list[int]:
    return _in_order(scores.argsort().tolist(), scores, sink, recent, mass)


def _in_order(order: list[int], scores: Tensor, sink: int, recent: int, mass: float) -> list[int]:
    kept = {*range(sink), *range(len(scores) - recent, len(scores))}
    for page in order:
        if float(scores[sorted(kept)].sum()) >= mass * float(scores.sum()):
            break
        kept.add(page)
    return sorted(kept)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda *given: 3, "as a list"),
        (lambda *given: choice(*given)[::-1], "ascending order"),
        (lambda *given: [*choice(*given), 30], "ascending order"),
        (lambda scores, sink, recent, mass: choice(scores, 0, recent, mass), "without a look"),
        (lambda scores, sink, recent, mass: choice(scores, sink, 0, mass), "without a look"),
        (lambda scores, sink, recent, mass: choice(scores, sink, recent, 0.8 * mass), "When is it enough"),
        (without_the_given, "What do the sink and recent"),
        (lambda scores, sink, recent, mass: list(range(30)), "pages are enough"),
        (lambda scores, sink, recent, mass: _in_order(list(range(30)), scores, sink, recent, mass), "is taken next"),
        (lowest_first, "is taken next"),
    ],
)
def test_wrong_choices_get_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_choice(wrong, seed)
