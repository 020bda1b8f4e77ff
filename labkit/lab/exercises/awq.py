"""Checks of chapter 05: a group rounded to nearest, and a scale that moves into the norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.awq.rounding import LEVELS, Grid
from labkit.lab.exercises.running import staged

GROUP = 32
RULES = {
    "scale": "The 15 steps span the range from the smallest weight (or 0) to the largest (or 0).",
    "zero": "z is the whole number whose level is 0: -low / s, rounded.",
    "q": "w / s + z, rounded, and kept within 0 to 15.",
    "norm": "y * (norm / s) is the input divided by s.",
    "weight": "Column j of the weight is what input j is multiplied by.",
}


def check_rounding(quantize: Callable[[Tensor], Any], seed: int | None = None) -> str:
    """Judge ``quantize(w) -> (s, z, q)`` for a group w [32]: a scale, a zero point, and q [32] with w about (q - z) s.

    The groups have both signs, one sign, or zeros only. seed: of the drawn values.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    w = torch.randn(GROUP, generator=draw)
    for name, group in {"both signs": w, "positive": w.abs() + 1, "negative": -w.abs() - 1, "zeros": w * 0}.items():
        given = quantize(group.clone())
        assert isinstance(given, tuple) and len(given) == 3, "Return three values: s, z, q."
        s, z, q = (torch.as_tensor(value, dtype=torch.float32) for value in given)
        _check_group(name, group, s, z, q)
    return "Right: 16 levels, zero among them, and no weight has a nearer one."


def _check_group(name: str, group: Tensor, s: Tensor, z: Tensor, q: Tensor) -> None:
    grid = Grid.of(group.view(1, 1, -1))
    assert q.shape == (GROUP,), f"q has the shape {list(q.shape)}: one number for each weight."
    assert bool(((q >= 0) & (q <= LEVELS) & (q == q.round())).all()), (
        f"{name}: q has values that 4 bits do not hold. {staged('Which numbers do they hold?', RULES['q'])}"
    )
    assert bool(z == z.round()) and 0 <= z <= LEVELS, (
        f"{name}: z is {float(z):g}. {staged('A file keeps it in 4 bits as well.', RULES['zero'])}"
    )
    if bool(group.any()):
        scale = float(grid.scale)
        assert abs(float(s) - scale) <= 2e-3 * scale, (
            f"{name}: s is {float(s):.4f}, not {scale:.4f}. "
            f"{staged('How many steps lie between 16 levels?', RULES['scale'])}"
        )
    mine, best = ((q - z) * s - group).abs().max(), (grid.rounded(group.view(1, 1, -1)) - group).abs().max()
    assert float(mine) <= float(best) * 1.02 + 1e-6, (
        f"{name}: a weight is off by {float(mine):.4f}; {float(best):.4f} can be had. "
        f"{staged('What does (q - z) s give for your q?', RULES['q'])}"
    )


def check_absorb(absorb: Callable[[Tensor, Tensor, Tensor], Any], seed: int | None = None) -> str:
    """Judge ``absorb(norm, weight, s) -> (norm, weight)``: the weights of input j times s_j, the product unchanged.

    norm: [K], what the normalised x is multiplied by; weight: [N, K]; s: [K]. seed: of the drawn values.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    x, norm, s = (
        torch.randn(5, 24, generator=draw),
        torch.rand(24, generator=draw) + 0.5,
        torch.rand(24, generator=draw),
    )
    weight, s = torch.randn(8, 24, generator=draw), s * 4 + 0.25
    given = absorb(norm.clone(), weight.clone(), s.clone())
    assert isinstance(given, tuple) and len(given) == 2, "Return two tensors: the norm and the weight."
    new_norm, new_weight = given
    assert new_weight.shape == weight.shape and torch.allclose(new_weight, weight * s, rtol=1e-4), (
        "The weights of input j are not s_j times what they were. "
        f"{staged('Which axis is the input?', RULES['weight'])}"
    )
    before, after = (x * norm) @ weight.T, (x * new_norm) @ new_weight.T
    assert torch.allclose(after, before, rtol=1e-3, atol=1e-4), (
        f"The product changed by {float((after - before).abs().max()):.3f}. "
        f"{staged('What has to happen to the input?', RULES['norm'])}"
    )
    return "Right: the weights are scaled, and nothing has changed."
