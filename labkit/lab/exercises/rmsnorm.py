"""Checks of chapter 03: a sum over the lanes of a warp, and the bytes that a norm has to move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from labkit.lab.exercises.running import first_finding, simulate, staged
from labkit.lab.rmsnorm_ladder import run_rung

LANES, WARPS, SHUFFLES = 32, 6, 5
HARNESS = """
extern "C" __global__ void sums(const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = warp_sum(x[i]);
}
"""


def check_warp_sum(source: str, seed: int | None = None) -> str:
    """Judge CUDA text that defines ``__device__ float warp_sum(float value)``: the sum over the warp, in every lane.

    It is called by three blocks of two warps. The check wants right sums in all 32 lanes, by five shuffles and without
    shared memory. seed: of the drawn values. Raises AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    x = torch.randn(WARPS, LANES, generator=draw)
    y = torch.full_like(x, float("nan"))
    result = simulate(source + HARNESS, "sums", WARPS // 2, 2 * LANES, [x, y])
    assert result.ok, first_finding(result)
    _check_sums(y, x.double().sum(dim=1, keepdim=True).float())
    _check_shuffles(result.counters)
    return "Right: five shuffles, and all 32 lanes hold the sum."


def _check_sums(y: torch.Tensor, sums: torch.Tensor) -> None:
    right = torch.isclose(y, sums.expand_as(y), rtol=1e-4, atol=1e-4)
    if right.all():
        return
    everywhere = right.all(dim=0)
    assert not (everywhere[0] and int(everywhere.sum()) == 1), (
        "Lane 0 holds the sum, the others do not. A butterfly (__shfl_xor_sync) serves all lanes alike."
    )
    lane = int((~everywhere).nonzero()[0])
    warp = int((~right[:, lane]).nonzero()[0])
    hint = staged(
        "After which shuffle does a lane hold the values of 2, 4, 8, ... lanes, and whose are they?",
        "Add what comes from lane ^ 16, then from lane ^ 8, and so on down to lane ^ 1.",
    )
    raise AssertionError(
        f"Lane {lane} of warp {warp} holds {y[warp, lane]:.4f}, the sum is {sums[warp, 0]:.4f}. {hint}"
    )


def _check_shuffles(counters: Any) -> None:
    warps_times = counters.instructions().get("shuffle", (0, 0))[0]
    total = counters.total()
    shared = total.shared_load.requests + total.shared_store.requests
    assert not shared, "The sums are right, but they went through shared memory. Registers are enough."
    shuffles = warps_times / WARPS
    assert shuffles <= SHUFFLES, (
        f"The sums are right, but took {shuffles:.0f} shuffles. Doubling needs log2(32) of them."
    )


def check_traffic(predict: Callable[[int, int], tuple[float, float]], seed: int | None = None) -> str:
    """Judge ``predict(rows, hidden) -> (bytes read, bytes written)`` for y = rmsnorm(x) * weight.

    x and y are fp16 [rows, hidden], weight is fp32 [hidden]; each byte counts once. The truth is what the simulator
    counts while the shipped kernel runs. seed: of the drawn shape.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for rows, hidden in ((1, 256), (16, 512), (rng.randint(2, 9), 128 * rng.randint(3, 10))):
        counted = counted_traffic(rows, hidden)
        given = predict(rows, hidden)
        assert isinstance(given, tuple) and len(given) == 2, "Return two numbers: bytes read, bytes written."
        for what, mine, truth in zip(("read", "written"), given, counted, strict=True):
            assert mine == truth, (
                f"{rows} x {hidden}: {truth} bytes are {what}, you say {mine}. {staged(QUESTION, HINTS[what])}"
            )
    return "Right: to the byte what the simulator counted."


QUESTION = "Which arrays cross the bus in this direction, how often, and how many bytes has an element of each?"
HINTS = {
    "read": "x comes in once, 2 bytes an element, and the weight once for all rows, 4 bytes an element.",
    "written": "y goes out once, 2 bytes an element.",
}


def counted_traffic(rows: int, hidden: int) -> tuple[int, int]:
    """(bytes read, bytes written) of DRAM by the shipped kernel, in whole sectors, as the simulator counts them."""
    counters = run_rung("3_vector", rows, hidden).counters
    return counters.dram_read_bytes, counters.dram_write_bytes
