"""y = x W^T for few rows of x and an fp16 weight, bound by the bandwidth of reading the weight once.

For what a checkpoint leaves in half precision: the output head, and projections that were not quantized.
Products and sums are fp32; a residual joins the sum before its one rounding.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.checks import WARP, chosen_rung, named_sizes, vector_width
from labkit.ops.gemv import THREADS, Operands, launch_split, operands, reference_product, row_class

RUNGS = ["1_naive", "2_coalesced", "3_split_k"]


def gemv_half(x: Tensor, weight: Tensor, *, residual: Tensor | None = None, rung: str | None = None) -> Tensor:
    """x: fp16 [M, K] with M from 1 to 8; weight: dense fp16 [N, K]; residual: fp16 [M, N]. Returns fp16 [M, N].

    Loads are 16 bytes wide where K is a multiple of 8 and the weight starts at a multiple of 16 bytes, narrower
    otherwise. Raises KernelArgumentError for other shapes, dtypes and layouts.
    """
    if executor_for(x, weight) == "torch":
        return reference(x, weight, residual=residual)
    rung = chosen_rung("gemv_half", rung, RUNGS)
    sizes = named_sizes("gemv_half", {"weight": (weight, torch.float16, ("N", "K"))})
    outputs, inputs = sizes["N"], sizes["K"]
    if not weight.is_contiguous() or not inputs:
        message = f"gemv_half: weight is {list(weight.shape)} with strides {list(weight.stride())}."
        raise KernelArgumentError(message, cure="Give rows of at least one element, one after the other.")
    given = operands("gemv_half", x, residual, outputs, inputs)
    if outputs:
        _launch(rung, weight, given)
    return given.y


def reference(x: Tensor, weight: Tensor, *, residual: Tensor | None = None) -> Tensor:
    """The definition in torch: fp32 inside, rounded once to x's dtype."""
    return reference_product(x, weight.float(), residual)


def macros(rows: int, inputs: int, vec: int = 0) -> dict[str, int]:
    """How the kernels are compiled for that many rows of x; vec 0: the widest loads that the length allows."""
    return {"ROWS": row_class(rows), "VEC": vec or vector_width(8, [inputs], []), "THREADS": THREADS}


@cache
def _kernel(rung: str, rows: int, inputs: int, vec: int) -> Kernel:
    return Kernel("gemv_half", rung, "gemv_half", macros(rows, inputs, vec))


def _launch(rung: str, weight: Tensor, given: Operands) -> None:
    (outputs, inputs), rows = weight.shape, len(given.x)
    vec = vector_width(8, [inputs], [given.x, weight])
    kernel = _kernel(rung, rows, inputs, vec)
    if rung in RUNGS[:2]:
        of_a_block = THREADS if rung == RUNGS[0] else THREADS // WARP
        tensors = [given.x, weight, given.residual, Out(given.y)]
        kernel.launch(-(-outputs // of_a_block), THREADS, [*tensors, rows, outputs, inputs])
    else:
        launch_split(kernel, [weight], given, inputs, WARP * vec)
