"""Checks of chapter 01: a first kernel with its guard, and how much operations compute for each byte."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch

from labkit.lab.drawing import counted
from labkit.lab.exercises.running import first_finding, simulate, staged

BLOCK = 32
WITHIN = 0.05  # of the intensity


def check_saxpy(source: str, seed: int | None = None) -> str:
    """Judge a kernel ``saxpy(float a, const float* x, float* y, int n)`` that should set y[i] = a * x[i] + y[i].

    It is launched with blocks of 32 threads, enough of them for n, on sizes that fill the last block and on sizes that
    do not. seed: of the drawn values; None draws one. Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for n in (1, 31, 32, 33, 100, rng.randint(65, 300)):
        _check_size(source, n, rng.randrange(2**31))
    return "Right: every element once, whatever their number, and nothing beyond the end."


def _check_size(source: str, n: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    a = float(torch.randn((), generator=draw)) + 2.0
    x, y = torch.randn(n, generator=draw), torch.randn(n, generator=draw)
    before_x, before_y = x.clone(), y.clone()
    blocks = -(-n // BLOCK)
    result = simulate(source, "saxpy", blocks, BLOCK, [a, x, y, n])
    launch = f"n = {n}, {counted(blocks, 'block')} of {BLOCK} threads"
    outside = [finding for finding in result.findings if finding.kind == "out-of-bounds"]
    assert not outside, (
        f"{launch}: {outside[0]}. There are more threads than elements: which of them should do nothing?"
    )
    assert result.ok, f"{launch}: {first_finding(result)}"
    assert torch.equal(x, before_x), f"{launch}: the kernel has changed x. Only y is written."
    wrong = ~torch.isclose(y, a * before_x + before_y, rtol=1e-5, atol=1e-5)
    assert not wrong.any(), f"{launch}: {_hint(wrong, y, before_y)}"


def _hint(wrong: torch.Tensor, y: torch.Tensor, before: torch.Tensor) -> str:
    if torch.equal(y, before):
        return "y is as it was. Assign to y[i]."
    first = int(wrong.nonzero()[0])
    if first == BLOCK and bool(wrong[BLOCK:].all()):
        return f"from element {BLOCK} on all are wrong: every block needs elements of its own. Use blockIdx.x."
    return f"element {first} is {y[first]:.4f} after the run and was {before[first]:.4f}; y = a * x + y."


def check_intensity(answers: Mapping[str, float]) -> str:
    """Judge FLOP per byte of DRAM traffic for the five operations of the chapter, within 5 %.

    Raises AssertionError with a hint; returns a sentence of praise.
    """
    missing = [name for name in INTENSITIES if answers.get(name) is None]
    assert not missing, f"No answer yet for {', '.join(missing)}."
    for name, (intensity, hint) in INTENSITIES.items():
        off = abs(answers[name] - intensity) / intensity
        assert off <= WITHIN, f"{name}: not {answers[name]:g}. {staged(QUESTION, hint)}"
    return "Right: four of the five are bound by memory on a V100."


QUESTION = "Count the FLOP of one element, and the bytes of it that are read and written."
INTENSITIES = {
    "saxpy": (2 / 12, "Two FLOP an element; x is read, y is read and written, 4 bytes each."),
    "residual add": (1 / 6, "One FLOP an element; two halves are read, one is written."),
    "fp16 GEMV": (1.0, "Two FLOP for each weight of 2 bytes; the vectors are small beside the matrix."),
    "int4 GEMV": (2 / (4.25 / 8), "Two FLOP a weight; 4 bits, and 32 more bits for each 128 weights, are 4.25 bits."),
    "fp16 GEMM": (4096 / 3, "2 N^3 FLOP; three matrices of N^2 halves cross the bus once, with N = 4096."),
}
