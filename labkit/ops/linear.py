"""Linear layers: y = x W^T for dense, INT8 and INT4 weights, wherever the operations run.

In torch (`linear_torch`) everything is multiplied in the precision that suits a CPU. On the simulator and on a GPU
(`linear_kernels`) fp16 activations go through the CUDA kernels or the library, whichever `tuning` names for the call.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from labkit.device import executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.linear_kernels import half_linear, int4_linear, int8_linear
from labkit.ops.linear_torch import (
    INT4_KERNEL_GROUPS,
    DenseLinear,
    DequantizedLinear,
    HalfLinear,
    Int4KernelLinear,
    Workspace,
)
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight

__all__ = ["FusedLinear", "Linear", "Workspace", "make_linear"]


class Linear(Protocol):
    """A projection: [M, K] in the model dtype -> [M, N] in the model dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def kernel(self) -> str: ...

    def bytes_read(self, rows: int) -> int:
        """Bytes of weights that a call with ``rows`` rows has to read."""
        ...


@runtime_checkable
class FusedLinear(Linear, Protocol):
    """A projection whose kernels can do the next step before they round their sums: one rounding to fp16 less."""

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x W^T: [M, N]."""
        ...

    def silu_mul(self, x: Tensor) -> Tensor:
        """silu(gate) * up of x W^T = [gate | up]: [M, N / 2]."""
        ...


def make_linear(weight: Tensor | Int4Weight | Int8Weight, dtype: torch.dtype, workspace: Workspace) -> Linear:
    """The linear layer for ``weight`` [N, K] under activations of ``dtype``, on the executor of the moment.

    On kernels the weight is put into their order, so the one that was given need not be kept. A dense fp32 weight keeps
    fp32 arithmetic whatever the activations: the loader leaves a weight in fp32 where half precision would lose its
    range. So does an INT4 weight that the kernels do not take, in torch; its ``kernel`` says why.
    """
    if dtype == torch.float16 and executor_for(_data(weight)) != "torch":
        return _on_kernels(weight, workspace)
    if isinstance(weight, Int8Weight):
        return DequantizedLinear(weight, workspace)
    if isinstance(weight, Int4Weight):
        fits = dtype == torch.bfloat16 and weight.group_size in INT4_KERNEL_GROUPS
        return Int4KernelLinear(weight, workspace) if fits else DequantizedLinear(weight, workspace)
    if dtype == torch.float32 or weight.dtype == torch.float32:
        return DenseLinear(weight.float())
    if "fbgemm" in torch.backends.quantized.supported_engines:
        return HalfLinear(weight)
    return DenseLinear(weight.to(dtype))


def _data(weight: Tensor | Int4Weight | Int8Weight) -> Tensor:
    """A tensor of the weight: where it lies decides where it runs."""
    if isinstance(weight, Tensor):
        return weight
    return weight.packed if isinstance(weight, Int4Weight) else weight.q


def _on_kernels(weight: Tensor | Int4Weight | Int8Weight, workspace: Workspace) -> Linear:
    if isinstance(weight, Int8Weight):
        return int8_linear(weight, workspace.half)
    if isinstance(weight, Tensor):
        return DenseLinear(weight) if weight.dtype == torch.float32 else half_linear(weight, workspace.half)
    try:
        return int4_linear(weight, workspace.half)
    except KernelArgumentError as error:
        return DequantizedLinear(weight, workspace, why=error.message)
