"""The checks of chapter 09 accept a softmax in pieces, however it is written, and say what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.lab.exercises.attention_decode import Part, check_merge, check_step


def merge(a: Part, b: Part) -> Part:
    m = torch.maximum(a[0], b[0])
    of_a, of_b = torch.exp(a[0] - m), torch.exp(b[0] - m)
    return m, of_a * a[1] + of_b * b[1], of_a * a[2] + of_b * b[2]


def in_numbers(a: Part, b: Part) -> Part:
    """Plain Python numbers are as good."""
    m, total, acc = merge(a, b)
    return float(m), float(total), acc


@pytest.mark.parametrize("right", [merge, in_numbers])
def test_a_merge_passes(right: Callable[[Part, Part], Any], seed: int) -> None:
    assert check_merge(right, seed).startswith("Right")


def by_exponentials(a: Part, b: Part) -> Part:
    """Right on paper; overflows."""
    m = torch.maximum(a[0], b[0])
    of_a, of_b = torch.exp(a[0]) / torch.exp(m), torch.exp(b[0]) / torch.exp(m)
    return m, of_a * a[1] + of_b * b[1], of_a * a[2] + of_b * b[2]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda a, b: a[0], "Return three values"),
        (lambda a, b: (a[2], a[1], a[2]), "largest and sum are numbers"),
        (lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]), "Which of all scores is the largest"),
        (lambda a, b: (torch.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]), "From which largest is each"),
        (lambda a, b: (*merge(a, b)[:2], a[2] + b[2]), "By what does acc have to be divided"),
        (lambda a, b: (*merge(a, b)[:2], merge(a, b)[2] / merge(a, b)[1]), "By what does acc have to be divided"),
        (by_exponentials, "loud: sum is nan|an empty part: sum is nan"),
    ],
)
def test_a_wrong_merge_gets_a_hint(wrong: Callable[[Part, Part], Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_merge(wrong, seed)


def step(body: str) -> str:
    return f"__device__ void step(float x, float v, float& largest, float& sum, float& acc) {{ {body} }}"


RIGHT = """
    float most = fmaxf(largest, x), before = exp2f(largest - most), p = exp2f(x - most);
    sum = sum * before + p, acc = acc * before + p * v, largest = most;
"""
WITH_A_BRANCH = """
    if (x <= largest) { float p = exp2f(x - largest); sum += p; acc += p * v; return; }
    float before = exp2f(largest - x);
    largest = x, sum = sum * before + 1.0f, acc = acc * before + v;
"""


@pytest.mark.parametrize("body", [RIGHT, WITH_A_BRANCH])
def test_a_step_passes(body: str, seed: int) -> None:
    assert check_step(step(body), seed).startswith("Right")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("largest = 0.0f; float p = exp2f(x); sum += p; acc += p * v;", "loud scores: the result is no number"),
        (RIGHT.replace("acc * before", "acc"), "rising scores: off by .* From which largest were sum and acc"),
        (RIGHT.replace("* before", ""), "rising scores: off by"),
        (RIGHT.replace("fmaxf(largest, x)", "x"), "loud scores: the result is no number"),
        (
            RIGHT.replace("largest = most", "largest = fmaxf(largest, x + 1.0f)"),
            "scores: off by|is what sum is measured",
        ),
        (RIGHT + "largest += 0.5f;", "scores: off by|log2"),
        ("sum = 1.0f; acc = v; largest = x;", "falling scores: off by"),
        ("", "is no number"),
        ("sum = summ;", "does not compile"),
    ],
)
def test_a_wrong_step_gets_a_hint(body: str, hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_step(step(body), seed)


def test_a_right_result_with_another_lse_gets_a_hint() -> None:
    """largest and sum may both be off, and the quotient right: the parts of two blocks would not fit together."""
    doubled = RIGHT.replace("sum * before + p", "sum * before + 2.0f * p").replace("p * v", "2.0f * p * v")
    with pytest.raises(AssertionError, match="the result is right, but largest"):
        check_step(step(doubled), 1)
