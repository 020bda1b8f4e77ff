"""``labkit bench gemv``: how near the INT4 GEMV comes to the memory's bandwidth, beside torch's INT4 kernel and cuBLAS.

Everything in one run: calls in a CUDA graph that rotates over weights larger than twice the L2 cache together, the
median of ten replays. GB/s are the bytes of an INT4 weight and its scales over the time; the share is that of a large
copy's bandwidth, bytes read plus bytes written, measured in the same run. cuBLAS reads fp16 weights: its figure is the
speed with which the same product is done, in the same INT4 bytes, so that the columns compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.bench.clock import Progress, copy_gb_per_s, current_gpu, origin
from labkit.bench.graph_timing import Call, graph_seconds, rotations, seconds_once
from labkit.bench.tune_weights import random_weights, weight_bytes
from labkit.ops.awq_gemv import RUNGS, awq_gemv
from labkit.ops.linear_candidates import timed_kernels
from labkit.ops.tuning_table import WeightShape
from labkit.quant.pack import PackedInt4

GROUP = 128
# The linear layers of Qwen3.5-27B, joined as the loader joins them, whole and on one of two ranks.
SHAPES = tuple(
    WeightShape("int4", outputs, inputs, GROUP)
    for outputs, inputs in (
        (34816, 5120),
        (17408, 5120),
        (16384, 5120),
        (14336, 5120),
        (5120, 17408),
        (8192, 5120),
        (7168, 5120),
        (5120, 8704),
        (5120, 6144),
        (5120, 3072),
    )
)
ROWS = (1, 4)
CUBLAS, TORCH = "cuBLAS fp16", "torch int4"


@dataclass(frozen=True)
class GemvTimes:
    """Seconds of one call for each kernel, for one shape and number of rows."""

    shape: WeightShape
    rows: int
    seconds: dict[str, float]

    def gb_per_s(self, kernel: str) -> float:
        """GB/s of the INT4 weight's bytes."""
        return weight_bytes(self.shape) / self.seconds[kernel] / 1e9


@dataclass(frozen=True)
class GemvBench:
    """One run. copy_gb_per_s: bytes read plus bytes written by a large copy. kernels: digest of the sources timed."""

    device: str
    driver: str
    torch: str
    labkit: str
    kernels: str
    date: str
    copy_gb_per_s: float
    times: tuple[GemvTimes, ...]

    def to_dict(self) -> dict[str, Any]:
        """For --json: GB/s of each kernel, and the shipped rung's share of the copy."""
        rows = [
            {
                "shape": str(t.shape),
                "rows": t.rows,
                "mb": weight_bytes(t.shape) / 1e6,
                "gb_per_s": {kernel: t.gb_per_s(kernel) for kernel in t.seconds},
                "share_of_copy": t.gb_per_s(RUNGS[-1]) / self.copy_gb_per_s,
            }
            for t in self.times
        ]
        return {**vars(self), "times": rows, "origin": "measured"}


def bench_gemv(
    shapes: Sequence[WeightShape] = SHAPES,
    rows: Sequence[int] = ROWS,
    rungs: Sequence[str] = RUNGS[-1:],
    progress: Progress | None = None,
) -> GemvBench:
    """Measure on the current GPU. Raises ExecutorError without one."""
    device, times = current_gpu("labkit bench gemv"), list[GemvTimes]()
    copy = copy_gb_per_s(device)
    for done, shape in enumerate(shapes):
        if progress:
            progress(done, len(shapes), str(shape))
        times += _measure(shape, rows, rungs, device)
    return GemvBench(*origin(device, timed_kernels()), copy, tuple(times))


def _measure(
    shape: WeightShape, rows: Sequence[int], rungs: Sequence[str], device: torch.device
) -> Iterator[GemvTimes]:
    weights = random_weights(shape, rotations(weight_bytes(shape), device), device)
    packed = [weight for weight in weights if isinstance(weight, PackedInt4)]
    torch_packed, pairs = _torch_weights(shape, len(packed), device)
    half = [torch.randn(shape.outputs, shape.inputs, device=device).half() for _ in range(max(2, len(packed) // 4))]
    for count in rows:
        x = torch.randn(count, shape.inputs, device=device).half()
        calls: dict[str, list[Call]] = {
            rung: [partial(awq_gemv, x, weight, rung=rung) for weight in packed] for rung in rungs
        }
        product = torch.ops.aten._weight_int4pack_mm
        calls[TORCH] = [partial(product, x.bfloat16(), weight, shape.group, pairs) for weight in torch_packed]
        calls[CUBLAS] = [partial(torch.mm, x, weight.T) for weight in half]
        seconds = {name: graph_seconds(group, seconds_once(group[0])).median for name, group in calls.items()}
        yield GemvTimes(shape, count, seconds)


def _torch_weights(shape: WeightShape, count: int, device: torch.device) -> tuple[list[Tensor], Tensor]:
    """Random weights as torch's kernel wants them: nibbles in its own order, (scale, zero) in bf16."""
    size = shape.outputs, shape.inputs // 2
    q = [torch.randint(0, 256, size, dtype=torch.uint8, device=device) for _ in range(count)]
    packed = [torch.ops.aten._convert_weight_to_int4pack(nibbles, 8) for nibbles in q]
    return packed, torch.rand(shape.inputs // shape.group, shape.outputs, 2, device=device).bfloat16()
