"""The checks of chapter 12 accept a chunk's deltas and a step in one pass, and say what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.lab.exercises.gated_delta import check_chunk, check_one_pass


def by_rows(a: Tensor, beta: Tensor, v: Tensor) -> Tensor:
    u = beta[:, None] * v
    for i in range(1, len(v)):
        u[i] -= a[i, :i] @ u[:i]
    return u


def by_columns(a: Tensor, beta: Tensor, v: Tensor) -> Tensor:
    """What is known is taken out of all later rows at once."""
    u = beta[:, None] * v
    for j in range(len(v)):
        u[j + 1 :] -= a[j + 1 :, j, None] * u[j]
    return u


def by_torch(a: Tensor, beta: Tensor, v: Tensor) -> Tensor:
    return torch.linalg.solve(torch.eye(len(a)) + a, beta[:, None] * v)


@pytest.mark.parametrize("right", [by_rows, by_columns, by_torch])
def test_a_chunk_passes(right: Callable[..., Tensor], seed: int) -> None:
    assert check_chunk(right, seed).startswith("Right")


def last_row_off(a: Tensor, beta: Tensor, v: Tensor) -> Tensor:
    u = by_rows(a, beta, v)
    u[-1] += 0.1 * (len(v) == 8)
    return u


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda a, beta, v: None, "1 tokens: return a tensor"),
        (lambda a, beta, v: by_rows(a, beta, v).T[:1], r"1 tokens: return a tensor \[1, 4\]"),
        (lambda a, beta, v: by_rows(a, beta * 0 + 1, v), "1 tokens: Which rows count beta times"),
        (lambda a, beta, v: by_rows(-a, beta, v), "2 tokens: On which side"),
        (lambda a, beta, v: beta[:, None] * v - a @ v, "2 tokens: Which rows does row i lean on"),
        (lambda a, beta, v: beta[:, None] * v - a @ (beta[:, None] * v), "3 tokens: Which rows does row i lean on"),
        (lambda a, beta, v: beta[:, None] * v, "2 tokens: Which rows does row i lean on"),
        (last_row_off, "8 tokens: row 7 is off"),
        (lambda a, beta, v: by_rows(a, beta, v) * torch.nan, "1 tokens: row 0 is off"),
    ],
)
def test_a_wrong_chunk_gets_a_hint(wrong: Callable[..., Any], hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_chunk(wrong, seed)


def test_the_rule_comes_with_the_second_failure() -> None:
    for hint in ("On which side", "On which side .* subtracted on the right"):
        with pytest.raises(AssertionError, match=hint):
            check_chunk(lambda a, beta, v: by_rows(-a, beta, v), 1)


def step(body: str) -> str:
    parameters = "float* s, int stride, const float* k, const float* q, float v, float decay, float beta"
    return f"__device__ float one_pass({parameters}) {{ {body} }}"


RIGHT = """
    float row[ROWS], of_k = 0.0f, of_q = 0.0f, k_q = 0.0f;
    for (int i = 0; i < ROWS; i++) {
        row[i] = decay * s[i * stride];
        of_k += row[i] * k[i], of_q += row[i] * q[i], k_q += k[i] * q[i];
    }
    float d = beta * (v - of_k);
    for (int i = 0; i < ROWS; i++) s[i * stride] = row[i] + k[i] * d;
    return of_q + k_q * d;
"""
FROM_REGISTERS = """
    float row[ROWS], found = 0.0f, o = 0.0f;
    for (int i = 0; i < ROWS; i++) row[i] = decay * s[i * stride], found += row[i] * k[i];
    float d = beta * (v - found);
    for (int i = 0; i < ROWS; i++) {
        s[i * stride] = row[i] += k[i] * d;
        o += row[i] * q[i];
    }
    return o;
"""
IN_TWO_PASSES = """
    float of_k = 0.0f, of_q = 0.0f, k_q = 0.0f;
    for (int i = 0; i < ROWS; i++) {
        float x = decay * s[i * stride];
        of_k += x * k[i], of_q += x * q[i], k_q += k[i] * q[i];
    }
    float d = beta * (v - of_k);
    for (int i = 0; i < ROWS; i++) s[i * stride] = decay * s[i * stride] + k[i] * d;
    return of_q + k_q * d;
"""
LATE_DECAY = RIGHT.replace("row[i] = decay * s", "row[i] = s").replace("= row[i] +", "= decay * row[i] +")


@pytest.mark.parametrize("body", [RIGHT, FROM_REGISTERS])
def test_a_step_passes(body: str, seed: int) -> None:
    assert check_one_pass(step(body), seed).startswith("Right")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (IN_TWO_PASSES, "right, but each element is loaded 1.9.* Where could a column stay"),
        (RIGHT.replace("return", "s[0] = s[0] + 0.0f * s[stride]; return"), "right, but each element is loaded"),
        (RIGHT.replace("+ k_q * d", ""), "a plain step: the output is off. Which state does q look at"),
        (LATE_DECAY, "a plain step: the new state is off. What does the key find"),
        (RIGHT.replace("= row[i] + k", "= row[i] / decay + k"), "the new state is off. What does the key find"),
        (RIGHT.replace("k[i] * d", "q[i] * d"), "a plain step: the new state is off. What is written"),
        (RIGHT.replace("beta * (v", "(v"), "a plain step: the new state is off. What is written"),
        (RIGHT.replace("- of_k", ""), "a plain step: the new state is off. What is written"),
        ("return 0.0f;", "a plain step: the new state is off"),
        (RIGHT.replace("i < ROWS", "i <= ROWS"), "out-of-bounds: line 5"),
        ("return summ;", "does not compile"),
    ],
)
def test_a_wrong_step_gets_a_hint(body: str, hint: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_one_pass(step(body), seed)
