"""The library's product of fp16 matrices, with fp32 sums: cuBLAS on a GPU, torch's fp32 matmul beside the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.checks import named_sizes
from labkit.ops.weight_checks import check_int8
from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import TILE

CPU_ELEMENTS = 1 << 22  # of the weight that are fp32 at a time: 16 MiB
_SETTINGS = Lock()  # torch's are those of the process: one thread would bring back what another has just forbidden


def half_matmul(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """x [M, K] times the transposed ``weight`` [N, K], both fp16: fp16 [M, N], sums in fp32 and rounded once.

    out: fp16 [M, N] to write to and return; it may be some columns of a larger matrix.
    Raises KernelArgumentError for shapes and dtypes that do not fit.
    """
    half = torch.float16
    sizes = named_sizes("half_matmul", {"x": (x, half, ("rows", "K")), "weight": (weight, half, ("outputs", "K"))})
    y = x.new_empty(sizes["rows"], sizes["outputs"]) if out is None else out
    if out is not None:
        named_sizes("half_matmul", {"out": (y, half, (sizes["rows"], sizes["outputs"]))})
    if x.device != weight.device or x.device != y.device:
        message = f"half_matmul: x is on {x.device}, weight on {weight.device}, out on {y.device}."
        raise KernelArgumentError(message, cure="Move all to one device.")
    if x.device.type == "cpu":
        return _on_cpu(x.float(), weight, y)
    with _fp32_sums():
        return torch.matmul(x, weight.T, out=y)


def int8_matmul(x: Tensor, weight: Int8Weight, workspace: HalfWorkspace) -> Tensor:
    """x [M, K] fp16 times the transposed ``weight`` [N, K]: fp16 [M, N].

    The weight, each entry rounded to fp16, passes through ``workspace`` in ranges of outputs.
    Raises KernelArgumentError for shapes and dtypes that do not fit.
    """
    check_int8("int8_matmul", weight)
    outputs, inputs = weight.shape
    named_sizes("int8_matmul", {"x": (x, torch.float16, ("rows", inputs))})
    step = workspace.rows(inputs, TILE)
    y = x.new_empty(len(x), outputs)
    for start in range(0, outputs, step):
        part = Int8Weight(weight.q[start : start + step], weight.scales[start : start + step])
        w = part.dequantize(out=workspace.take(*part.shape, x.device))
        half_matmul(x, w, y[:, start : start + step])
    return y


def _on_cpu(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    step = max(1, CPU_ELEMENTS // max(1, weight.shape[1]))
    for start in range(0, weight.shape[0], step):
        y[:, start : start + step] = x @ weight[start : start + step].float().T
    return y


@contextmanager
def _fp32_sums() -> Iterator[None]:
    """cuBLAS may otherwise add up the parts of a split sum in fp16, where large activations overflow."""
    settings = torch.backends.cuda.matmul
    with _SETTINGS:
        before = settings.allow_fp16_reduced_precision_reduction
        settings.allow_fp16_reduced_precision_reduction = False
        try:
            yield
        finally:
            settings.allow_fp16_reduced_precision_reduction = before
