"""What the GEMVs over unpacked weights (gemv_half, gemv_int8) share: their operands, and how blocks divide K."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from labkit.device import Kernel, Out
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, aligned, named_sizes
from labkit.ops.split_k import arrival_counters

MOST_ROWS = 8  # of x
ROW_CLASSES = (1, 2, 4, 8)  # rows that a kernel is compiled for; fewer may be given
THREADS = 128
OUTPUTS = 4  # of a warp of the last rungs
# Blocks share K until a V100's 80 multiprocessors have 16 warps each. With 2 to 8 KB on the way for a warp that is more
# than the 630 KB which its memory needs: 900 GB/s times about 0.7 us until an answer.
ENOUGH_WARPS = 80 * 16


class Operands(NamedTuple):
    """x [rows, K] and the residual [rows, N] (or None) as the kernels take them, and y [rows, N] to be written."""

    x: Tensor
    residual: Tensor | None
    y: Tensor


def operands(op: str, x: Tensor, residual: Tensor | None, outputs: int, inputs: int) -> Operands:
    """Raises KernelArgumentError for other shapes and dtypes than x [1 to 8, K] and residual [rows of x, N] of fp16.

    An x that is not dense, or does not start at a multiple of 16 bytes, is copied: it is small. So is a residual that
    is not dense, or starts inside an element's place.
    """
    rows = named_sizes(op, {"x": (x, torch.float16, ("rows", inputs))})["rows"]
    if not 1 <= rows <= MOST_ROWS:
        message = f"{op}: x has {rows} rows; its kernels take 1 to {MOST_ROWS}."
        raise KernelArgumentError(message, cure="Use a matrix product for more.")
    if residual is not None:
        named_sizes(op, {"residual": (residual, torch.float16, (rows, outputs))})
        residual = aligned(residual, residual.element_size())
    return Operands(aligned(x), residual, x.new_empty(rows, outputs))


def row_class(rows: int) -> int:
    """The smallest number of rows that a kernel is compiled for and that is enough."""
    return next(size for size in ROW_CLASSES if size >= rows)


def shares_of_k(outputs: int, inputs: int, step: int) -> tuple[int, int]:
    """(blocks that share K, inputs of each), for warps of OUTPUTS outputs that take ``step`` inputs at a time.

    A share is two steps at least: below that, adding up the shares costs more than they save.
    """
    warps = -(-outputs // OUTPUTS)
    most = max(1, inputs // (2 * step))
    wanted = max(1, min(ENOUGH_WARPS // warps, most))
    share = -(-inputs // (wanted * step)) * step
    return -(-inputs // share), share


def launch_split(kernel: Kernel, weights: list[Tensor], given: Operands, inputs: int, step: int) -> None:
    """Launch a rung whose blocks share K. weights: what the kernel takes between x and the residual."""
    rows, outputs = given.y.shape
    blocks = -(-outputs // (OUTPUTS * THREADS // WARP))
    splits, share = shares_of_k(outputs, inputs, step)
    partials = arrivals = None
    if splits > 1:
        partials = torch.empty(splits, rows, outputs, device=given.x.device)
        arrivals = arrival_counters(given.x.device, blocks)
    tensors = [given.x, *weights, given.residual, Out(given.y), partials, arrivals]
    kernel.launch((blocks, splits), THREADS, [*tensors, rows, outputs, inputs, share])


def reference_product(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    """x [M, K] times the transposed fp32 weight [N, K], plus the residual: fp32 inside, rounded once to x's dtype."""
    y = x.float() @ weight.T
    if residual is None:
        return y.to(x.dtype)
    if residual.shape != y.shape:  # torch would spread one row over all
        message = f"The residual has shape {list(residual.shape)}, the product {list(y.shape)}."
        raise KernelArgumentError(message, cure="Check the shapes.")
    return (y + residual.float()).to(x.dtype)
