"""The checks of chapter 10 accept what is right, and say what is wrong with the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.lab.exercises.attention_prefill import check_pages, check_step

State = tuple[float, float, Tensor]


def step(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    new = max(top, float(scores.max()))
    shrink, weights = math.exp(top - new), (scores - new).exp()
    return new, total * shrink + float(weights.sum()), sums * shrink + weights @ values


def test_a_step_passes(seed: int) -> None:
    assert check_step(step, seed).startswith("Right")


def with_tensors(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    new = torch.maximum(torch.tensor(top), scores.max())
    shrink, weights = (top - new).exp(), (scores - new).exp()
    return new, total * shrink + weights.sum(), sums * shrink + weights @ values


def test_tensors_instead_of_numbers_pass(seed: int) -> None:
    assert check_step(with_tensors, seed).startswith("Right")


def last_page_only(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    return step(top, 0.0, sums * 0, scores, values)


def top_of_page(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    new = float(scores.max())
    shrink, weights = math.exp(min(top - new, 700.0)), (scores - new).exp()
    return new, total * shrink + float(weights.sum()), sums * shrink + weights @ values


def without_top(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    new, weights = max(top, float(scores.max())), (scores + 400).exp()
    return new, total + float(weights.sum()), sums + weights @ values


def not_rescaled(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    new, _, _ = step(top, total, sums, scores, values)
    weights = (scores - new).exp()
    return new, total + float(weights.sum()), sums + weights @ values


def only_total(top: float, total: float, sums: Tensor, scores: Tensor, values: Tensor) -> State:
    new, right, _ = step(top, total, sums, scores, values)
    return new, right, sums + (scores - new).exp() @ values


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda *state: None, "Return three values"),
        (lambda top, total, sums, scores, values: (top, total, sums), "What is the largest score"),
        (lambda *state: (*step(*state)[:2], torch.zeros(3)), "sums has the shape"),
        (top_of_page, "What is the largest score"),
        (without_top, "How large can an exponent"),
        (last_page_only, "total is off .* Under which top"),
        (not_rescaled, "total is off .* Under which top"),
        (only_total, "sums is off .* Under which top"),
    ],
)
def test_a_wrong_step_gets_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_step(wrong, seed)


def pages(position: int, rows: int) -> tuple[int, int]:
    return (position + rows - 1) // 64 + 1, (position + 1) // 64


def test_pages_are_found(seed: int) -> None:
    assert check_pages(pages, seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda position, rows: position, "two whole numbers"),
        (lambda position, rows: (position // 64 + 1, (position + 1) // 64), "Where does the last row stand"),
        (lambda position, rows: ((position + rows) // 64 + 1, (position + 1) // 64), "Where does the last row stand"),
        (lambda position, rows: (pages(position, rows)[0], position // 64), "Which row sees least"),
        (lambda position, rows: (pages(position, rows)[0], pages(position, rows)[0] - 1), "Which row sees least"),
        (lambda position, rows: (pages(position, rows)[0], (position + rows) // 64), "Which row sees least"),
    ],
)
def test_wrong_pages_get_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_pages(wrong, seed)
