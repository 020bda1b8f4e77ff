"""Linear layers on the simulator and on a GPU: fp16 activations, weights in the order of the kernels.

Each call runs on the candidate that `tuning` names for its number of rows. All of them keep fp32 sums over the same
weights, so the choice changes a result by rounding alone: that of the weights to fp16, and that of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.ops.awq_gemv import awq_gemv
from labkit.ops.checks import aligned
from labkit.ops.linear_candidates import CANDIDATES, Build, KernelWeight, builds
from labkit.ops.silu_mul import silu_mul
from labkit.ops.tuning import Place, choose, place_of, ranges
from labkit.ops.tuning_table import WeightShape
from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import TILE, PackedInt4, pack


class KernelLinear:
    """A weight [N, K] that kernels take.

    weight: PackedInt4, Int8Weight, or dense fp16 [N, K]. shape: how the choice of a candidate sees it.
    workspace: grows now as far as this weight needs it, since a captured CUDA graph holds its address.
    """

    def __init__(self, weight: KernelWeight, shape: WeightShape, workspace: HalfWorkspace) -> None:
        self.weight, self.shape, self._workspace = weight, shape, workspace
        self._place = place_of(weight.device)
        self._chosen: dict[int, str] = {}
        if shape.kind != "half":
            rows = min(shape.outputs, workspace.rows(shape.inputs, TILE))
            workspace.take(rows, shape.inputs, weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, None)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x W^T: [M, N]; on a matrix-vector kernel rounded once, else twice."""
        return self._run(x, residual)

    def silu_mul(self, x: Tensor) -> Tensor:
        """silu(gate) * up of x W^T = [gate | up]: [M, N / 2]; on awq_gemv rounded once, else twice."""
        fitting = len(x) > 0 and self.shape.outputs % (2 * TILE) == 0
        if isinstance(self.weight, PackedInt4) and fitting and self.choice(len(x)) == "awq_gemv":
            return awq_gemv(x, self.weight, silu_mul=True)
        return silu_mul(self(x))

    def choice(self, rows: int) -> str:
        """The candidate that runs a call with ``rows`` rows."""
        chosen = self._chosen.get(rows)
        if chosen is None:
            chosen = self._chosen[rows] = choose(self.shape, rows, self._place)
        return chosen

    @property
    def builds(self) -> list[Build]:
        """The kernels that calls may launch, whatever their number of rows."""
        form = self.weight.form if isinstance(self.weight, PackedInt4) else "scale_zero"
        return needed_builds(self.shape, form, self._place)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def bytes_read(self, rows: int) -> int:
        return self.weight.nbytes

    @property
    def kernel(self) -> str:
        """The candidates by rows, such as "gemv_half up to 8 rows, matmul above"."""
        *first, (_, last) = ranges(self.shape, self._place)
        return ", ".join([*(f"{name} up to {rows} rows" for rows, name in first), f"{last} above" if first else last])

    def _run(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if not len(x):
            return x.new_empty(0, self.shape.outputs)
        candidate = CANDIDATES[self.shape.kind][self.choice(x.shape[0])]
        return candidate(x, self.weight, self._workspace, residual)


def needed_builds(shape: WeightShape, form: Form, place: Place) -> list[Build]:
    """The kernels that a weight of a shape and form may need at a place."""
    return [build for rows, name in ranges(shape, place) for build in builds(name, shape, form, rows)]


def int4_linear(weight: Int4Weight, workspace: HalfWorkspace) -> KernelLinear:
    """``weight`` packed for the kernels. Raises KernelArgumentError, as ``pack`` does, for what they do not take."""
    packed = pack(weight)
    return KernelLinear(packed, WeightShape("int4", *packed.shape, packed.group_size), workspace)


def int8_linear(weight: Int8Weight, workspace: HalfWorkspace) -> KernelLinear:
    """``weight`` as it is."""
    return KernelLinear(weight, WeightShape("int8", *weight.shape, weight.group_size), workspace)


def half_linear(weight: Tensor, workspace: HalfWorkspace) -> KernelLinear:
    """A dense weight in fp16; one that begins at an odd place of a file is copied, so that loads may be wide."""
    half = aligned(weight.to(torch.float16))
    outputs, inputs = half.shape
    return KernelLinear(half, WeightShape("half", outputs, inputs, 0), workspace)
