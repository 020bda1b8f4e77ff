"""The checks of chapter 08 accept what is right, and say what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.lab.exercises.paged_kv import check_int8, check_row, check_turn
from labkit.quant.kv import hadamard, quantize_int8


def row(position: int, head: int, table: Sequence[int], kv_heads: int) -> int:
    return (table[position // 64] * kv_heads + head) * 64 + position % 64


def test_a_row_is_found(seed: int) -> None:
    assert check_row(row, seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda position, head, table, kv_heads: None, "one whole number"),
        (lambda position, head, table, kv_heads: position, "Which entry of the table"),
        (lambda p, head, table, kv_heads: row((p + 64) % 320, head, table, kv_heads), "Which entry of the table"),
        (lambda p, head, table, kv_heads: table[p // 64] * kv_heads * 64 + p % 64, "In which order"),
        (lambda p, head, table, kv_heads: (table[p // 64] * 64 + p % 64) * kv_heads + head, "In which order"),
    ],
)
def test_a_wrong_row_gets_a_hint(wrong: Callable[..., Any], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        for seed in range(20):  # a single draw may be right by chance
            check_row(wrong, seed)


def int8(x: Tensor, *, stored: bool = True, levels: int = 127, floor: float = 2.0**-17) -> tuple[Tensor, Tensor]:
    exact = (x.abs().amax(1) / levels).clamp(min=floor)
    used = exact.half().float() if stored else exact
    return (x / used[:, None]).round().clamp(-127, 127), exact.half()


def test_int8_passes(seed: int) -> None:
    assert check_int8(int8, seed).startswith("Right")
    assert check_int8(quantize_int8, seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda x: x, "Return two values"),
        (lambda x: (x, x), "not"),
        (lambda x: (int8(x)[0], int8(x)[1].float()), "torch.float16"),
        (lambda x: (x / int8(x)[1].float()[:, None], int8(x)[1]), "whole numbers"),
        (lambda x: int8(x, levels=63), "Which number should the largest"),
        (lambda x: int8(x, floor=0.0), "zeros: q or scale is not finite"),
        (lambda x: (int8(x)[0].clamp(-100, 100), int8(x)[1]), "an error of"),
        (lambda x: int8(x, stored=False), "Which scale will they be multiplied by"),
    ],
)
def test_wrong_int8_gets_a_hint(wrong: Callable[[Tensor], Any], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        for seed in range(20):
            check_int8(wrong, seed)


def test_turning_passes(seed: int) -> None:
    assert check_turn(hadamard, seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda x: x[:1], "a vector of 2 elements"),
        (lambda x: hadamard(x) * len(x) ** 0.5, "times as long"),
        (lambda x: x, "turned elsewhere"),
        (lambda x: hadamard(x).flip(0), "turned elsewhere"),
        (lambda x: torch.zeros_like(x), "times as long"),
    ],
)
def test_another_turn_gets_a_hint(wrong: Callable[[Tensor], Tensor], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_turn(wrong)
