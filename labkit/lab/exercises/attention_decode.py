"""Checks of chapter 09: two parts of a softmax become one, and a running softmax takes one more token."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.lab.exercises.running import first_finding, simulate, staged

LOWEST = -3.402823466e38  # of a part without tokens
LANES = 32
MERGE_RULES = {
    "largest": "The largest score of both parts together is the larger one of their two: max(a[0], b[0]).",
    "sum": "With m the new largest, each sum is brought down to it: exp(a[0] - m) a[1] + exp(b[0] - m) b[1].",
    "acc": "acc has the same unit as sum, so the same two factors: exp(a[0] - m) a[2] + exp(b[0] - m) b[2].",
}
STEP_RULES = {
    "finite": "Never take exp2f of a score as it is: subtract the largest one so far, which makes it 0 at most.",
    "rises": (
        "most = fmaxf(largest, x); before = exp2f(largest - most); p = exp2f(x - most);"
        " then sum = sum * before + p, acc = acc * before + p * v, largest = most."
    ),
}
HARNESS = """
extern "C" __global__ void walk(const float* x, const float* v, float* y, float* ends, int tokens) {
    float largest = -3.402823466e38f, sum = 0.0f, acc = 0.0f;
    for (int t = 0; t < tokens; t++) step(x[t], v[32 * t + threadIdx.x], largest, sum, acc);
    y[threadIdx.x] = acc / sum;
    if (threadIdx.x == 0) ends[0] = largest + log2f(sum);
}
"""

Part = tuple[Any, Any, Tensor]  # largest, sum, acc [D]


def part_of(scores: Tensor, values: Tensor) -> Part:
    """(largest, sum, acc) of some tokens: scores [n], values [n, D]; without any (LOWEST, 0, zeros)."""
    largest = scores.max() if len(scores) else torch.tensor(LOWEST)
    weights = torch.exp(scores - largest)
    return largest, weights.sum(), weights @ values


def check_merge(merge: Callable[[Part, Part], Any], seed: int | None = None) -> str:
    """Judge ``merge(a, b)`` of two parts (largest, sum, acc [D]), with exponentials to base e: the part of both.

    Scores are ordinary, and so large that their exponentials overflow; parts are long, short and empty, and merged in
    any order. The check is the softmax of all tokens at once, in fp64. seed: of what is drawn. Raises AssertionError
    with a hint; returns a sentence of praise.
    """
    draw, order = torch.Generator().manual_seed(torch.seed() if seed is None else seed), random.Random(seed)
    cases = {"equal parts": ([8, 8], 1.0), "unequal parts": ([1, 60], 3.0), "an empty part": ([0, 5], 1.0)}
    for name, (sizes, spread) in {**cases, "many parts": ([7, 0, 64, 1, 30], 4.0), "loud": ([9, 9, 9], 400.0)}.items():
        scores, values = spread * torch.randn(sum(sizes), generator=draw), torch.randn(sum(sizes), 16, generator=draw)
        parts = [part_of(s, v) for s, v in zip(scores.split(sizes), values.split(sizes), strict=True)]
        order.shuffle(parts)
        total = parts[0]
        for part in parts[1:]:
            total = _as_part(merge(total, part), values.shape[1])
        _check_part(name, total, scores.double(), values.double())
    return "Right: in whatever pieces, it is the softmax of all tokens."


def _as_part(given: Any, width: int) -> Part:
    assert isinstance(given, tuple) and len(given) == 3, "Return three values: largest, sum, acc."
    largest, total, acc = (torch.as_tensor(each, dtype=torch.float32) for each in given)
    assert largest.ndim == total.ndim == 0 and acc.shape == (width,), "largest and sum are numbers, acc is a vector."
    return largest, total, acc


def _check_part(name: str, given: Part, scores: Tensor, values: Tensor) -> None:
    largest, total, acc = given
    assert torch.isclose(largest.double(), scores.max()), (
        f"{name}: largest is {largest:.4g}, not {scores.max():.4g}. "
        f"{staged('Which of all scores is the largest?', MERGE_RULES['largest'])}"
    )
    exact = torch.exp(scores - scores.max())
    assert torch.isclose(total.double(), exact.sum(), rtol=1e-4), (
        f"{name}: sum is {total:.4g}, not {exact.sum():.4g}. "
        f"{staged('From which largest is each of the two sums measured?', MERGE_RULES['sum'])}"
    )
    assert torch.allclose(acc.double(), exact @ values, rtol=1e-3, atol=1e-4), (
        f"{name}: largest and sum are right, acc is not. "
        f"{staged('By what does acc have to be divided in the end?', MERGE_RULES['acc'])}"
    )


def check_step(source: str, seed: int | None = None) -> str:
    """Judge CUDA text that defines ``__device__ void step(float x, float v, float& largest, float& sum, float& acc)``.

    It takes one more token with the score x (to base 2) and the value v. All scores fall, rise, go up and down, or are
    far beyond what exp2f can hold. seed: of what is drawn. Raises AssertionError with a hint; returns praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    x = 2 * torch.randn(40, generator=draw)
    ordered = x.sort().values
    for name, scores in {"falling": ordered.flip(0), "rising": ordered, "up and down": x, "loud": 200 * x}.items():
        _check_walk(source, name, scores.contiguous(), torch.randn(len(x), LANES, generator=draw))
    return "Right: one token after the other, and no score is kept."


def _check_walk(source: str, name: str, x: Tensor, v: Tensor) -> None:
    y, end = torch.full((LANES,), torch.nan), torch.full((1,), torch.nan)
    result = simulate(source + HARNESS, "walk", 1, LANES, [x, v, y, end, len(x)])
    assert result.ok, first_finding(result)
    natural = x.double() * math.log(2)
    lse = float(torch.logsumexp(natural, 0)) / math.log(2)
    finite = bool(y.isfinite().all() and end.isfinite().all())
    assert finite, f"{name} scores: the result is no number. {_hint('How large may exp2f get?', 'finite')}"
    exact = torch.softmax(natural, 0) @ v.double()
    near = float((y.double() - exact).norm() / exact.norm())
    assert near <= 1e-3, (
        f"{name} scores: off by {near:.0%}. "
        f"{_hint('From which largest were sum and acc measured before this token came?', 'rises')}"
    )
    assert abs(float(end) - lse) <= 1e-3 * max(1.0, abs(lse)), (
        f"{name} scores: the result is right, but largest + log2(sum) is {float(end):.4g}, not {lse:.4g}. "
        f"{_hint('Is largest what sum is measured from?', 'rises')}"
    )


def _hint(question: str, rule: str) -> str:
    return staged(question, STEP_RULES[rule])
