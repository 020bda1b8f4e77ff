"""The checks of chapter 05 accept what is right, and say what is wrong with the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.lab.exercises.awq import check_absorb, check_rounding


def rounding(w: Tensor, *, through_zero: bool = True, steps: int = 15, clamp: bool = True, shift: int = 0) -> Any:
    low, high = w.min(), w.max()
    if through_zero:
        low, high = low.clamp(max=0), high.clamp(min=0)
    s = ((high - low) / steps).clamp(min=1e-7)
    z = (-low / s).round()
    q = (w / s).round() + z + shift
    return s, z, q.clamp(0, 15) if clamp else q


def test_rounding_to_nearest_passes(seed: int) -> None:
    assert check_rounding(rounding, seed).startswith("Right")
    assert check_rounding(lambda w: tuple(value.half() for value in rounding(w)), seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda w: 1, "Return three values"),
        (lambda w: (1.0, 0, torch.zeros(3)), "one number for each weight"),
        (lambda w: rounding(w, steps=16), "s is"),
        (lambda w: rounding(w, through_zero=False), "positive|negative"),
        (lambda w: rounding(w, shift=1), "off by|hold"),
        (lambda w: rounding(w, shift=3, clamp=False), "4 bits do not hold"),
        (lambda w: (rounding(w)[0], rounding(w)[1] + 0.5, rounding(w)[2]), "z is"),
        (lambda w: (rounding(w)[0], rounding(w)[1], torch.zeros(32)), "off by"),
    ],
)
def test_wrong_rounding_gets_a_hint(seed: int, wrong: Any, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_rounding(wrong, seed)


def test_hiding_a_scale_passes(seed: int) -> None:
    assert check_absorb(lambda norm, weight, s: (norm / s, weight * s), seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda norm, weight, s: norm, "Return two tensors"),
        (lambda norm, weight, s: (norm, weight), "not s_j times"),
        (lambda norm, weight, s: (norm, weight * s), "The product changed"),
        (lambda norm, weight, s: (norm * s, weight * s), "The product changed"),
        (lambda norm, weight, s: (norm / s, weight / s), "not s_j times"),
    ],
)
def test_a_changed_model_gets_a_hint(seed: int, wrong: Any, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_absorb(wrong, seed)
