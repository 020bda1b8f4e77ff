"""y = x W^T for few rows of x and an INT8 weight w = q s, bound by the bandwidth of reading the weight once.

The rung between fp16 and INT4 for what a checkpoint leaves in half precision: half the bytes, hardly any loss.
Products q x are exact in fp32, sums are fp32, the scale multiplies sums within its group; a residual joins before the
one rounding.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, WIDEST_LOAD, check_tensor, chosen_rung
from labkit.ops.gemv import THREADS, Operands, launch_split, operands, reference_product, row_class
from labkit.ops.weight_checks import check_int8
from labkit.quant.int8 import Int8Weight

RUNGS = ["1_coalesced", "2_magic", "3_split_k"]
LANE_INPUTS = 16  # of a lane in a step: one 16-byte load


def gemv_int8(x: Tensor, weight: Int8Weight, *, residual: Tensor | None = None, rung: str | None = None) -> Tensor:
    """x: fp16 [M, K] with M from 1 to 8; residual: fp16 [M, N]. Returns fp16 [M, N].

    Raises KernelArgumentError for other shapes and dtypes, and for a weight that does not start at a multiple of 16
    bytes.
    """
    check_int8("gemv_int8", weight)
    if executor_for(x, weight.q) == "torch":
        return reference(x, weight, residual=residual)
    rung = chosen_rung("gemv_int8", rung, RUNGS)
    check_tensor("gemv_int8", "scales", weight.scales)
    addresses = weight.q.data_ptr() % WIDEST_LOAD, weight.scales.data_ptr() % weight.scales.element_size()
    if not weight.q.is_contiguous() or not weight.scales.is_contiguous() or any(addresses):
        message = f"gemv_int8: the weight is not dense, or does not start at a multiple of {WIDEST_LOAD} bytes."
        raise KernelArgumentError(message, cure="Call .clone() on its tensors.")
    given = operands("gemv_int8", x, residual, *weight.shape)
    if weight.shape[0]:
        _launch(rung, weight, given)
    return given.y


def reference(x: Tensor, weight: Int8Weight, *, residual: Tensor | None = None) -> Tensor:
    """The definition in torch: fp32 inside, rounded once to x's dtype."""
    return reference_product(x, weight.dequantize(), residual)


def macros(rows: int, group_size: int) -> dict[str, int]:
    """How the kernels are compiled for that many rows of x and groups of ``group_size`` inputs."""
    return {"ROWS": row_class(rows), "GROUP": group_size, "THREADS": THREADS}


@cache
def _kernel(rung: str, rows: int, group_size: int) -> Kernel:
    return Kernel("gemv_int8", rung, "gemv_int8", macros(rows, group_size))


def _launch(rung: str, weight: Int8Weight, given: Operands) -> None:
    (outputs, inputs), rows = weight.shape, len(given.x)
    kernel = _kernel(rung, rows, weight.group_size)
    weights = [weight.q, weight.scales]
    if rung in RUNGS[:2]:
        tensors = [given.x, *weights, given.residual, Out(given.y)]
        kernel.launch(-(-outputs // (THREADS // WARP)), THREADS, [*tensors, rows, outputs, inputs])
    else:
        launch_split(kernel, weights, given, inputs, WARP * LANE_INPUTS)
