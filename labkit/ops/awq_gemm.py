"""Products with INT4 weights on the tensor cores of SM70: y = x w^T for any number of rows.

w = (q - z) s or q s + b with the numbers of its group, rounded to fp16; products are exact, sums fp32, and y is rounded
once. The kernels read ``PackedInt4`` (labkit/quant/pack.py), whose order is that of the B operand of
``mma.m8n8k4``: a lane dequantizes its own 16 bytes and multiplies them, without shared memory between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.ops.checks import WARP, aligned, chosen_rung, dense_rows, named_sizes
from labkit.ops.gemv import reference_product
from labkit.ops.split_k import arrival_counters
from labkit.ops.weight_checks import check_packed
from labkit.quant.int4 import Form
from labkit.quant.pack import CHUNK, PackedInt4, unpack

RUNGS = ["1_one_warp", "2_swizzled", "3_double_buffer", "4_small_m", "5_large_tile"]
SMALL_M = 16  # rows up to which 4_small_m runs unless another rung is asked for


@dataclass(frozen=True)
class Tiling:
    """What one block of a rung computes, and with how many warps."""

    rows: int
    outputs: int
    warps: int


TILINGS = {
    "1_one_warp": Tiling(8, 32, 1),
    "2_swizzled": Tiling(32, 128, 4),
    "3_double_buffer": Tiling(32, 128, 4),
    "4_small_m": Tiling(16, 64, 4),
    "5_large_tile": Tiling(128, 256, 8),
}
"""As the constants of the sources say."""

ENOUGH_BLOCKS = 320  # of 4_small_m: four for each of a V100's 80 multiprocessors
FEWEST_STEPS = 2  # of 32 inputs, for each warp of a block that shares K


def awq_gemm(x: Tensor, weight: PackedInt4, *, rung: str | None = None) -> Tensor:
    """``x`` [..., K] times the transpose of ``weight`` [N, K]: fp16 [..., N].

    Without a rung, ``4_small_m`` runs for up to 16 rows and ``5_large_tile`` for more. An x whose rows do not lie one
    after the other, or that does not start at a multiple of 16 bytes, is copied first.
    Raises KernelArgumentError for shapes and dtypes that the kernels do not take.
    """
    check_packed("awq_gemm", weight)
    if executor_for(x, weight.data) == "torch":
        return reference(x, weight)
    rows = aligned(dense_rows("awq_gemm", "x", x))
    outputs, inputs = weight.shape
    count = named_sizes("awq_gemm", {"x": (rows, torch.float16, ("rows", inputs))})["rows"]
    rung = chosen_rung("awq_gemm", rung, RUNGS) if rung is not None or count > SMALL_M else "4_small_m"
    y = rows.new_empty(count, outputs)
    if count and outputs:
        _launch(rung, rows, weight, y)
    return y.view(*x.shape[:-1], outputs)


def reference(x: Tensor, weight: PackedInt4) -> Tensor:
    """The definition in torch: fp32 weights and sums, the result rounded to x's dtype."""
    return reference_product(x, unpack(weight).dequantize(), None)


def macros(group_size: int, form: Form) -> dict[str, int]:
    """How the kernels are compiled for weights of one kind; N, K and the number of rows are arguments."""
    return {"GROUP": group_size, "SCALE_BIAS": int(form == "scale_bias")}


def splits(rows: int, outputs: int, inputs: int) -> int:
    """How many blocks of 4_small_m share K: enough to fill a V100, and each with some steps for every warp."""
    tiling = TILINGS["4_small_m"]
    blocks = -(-rows // tiling.rows) * -(-outputs // tiling.outputs)
    return max(1, min(-(-ENOUGH_BLOCKS // blocks), inputs // (CHUNK * FEWEST_STEPS * tiling.warps)))


@cache
def _kernel(rung: str, group_size: int, form: Form) -> Kernel:
    return Kernel("awq_gemm", rung, "awq_gemm", macros(group_size, form))


def _launch(rung: str, x: Tensor, weight: PackedInt4, y: Tensor) -> None:
    (count, inputs), outputs = x.shape, weight.outputs
    tiling = TILINGS.get(rung, TILINGS[RUNGS[-1]])  # an unknown rung is refused by its name when it is compiled
    across, down = -(-outputs // tiling.outputs), -(-count // tiling.rows)
    grid: tuple[int, ...] = (down, across)
    arguments = [x, weight.data, Out(y), count, outputs, inputs // weight.group_size]
    if rung == "4_small_m":
        grid = (across, splits(count, outputs, inputs), down)
        arguments += [None, None] if grid[1] == 1 else _shared_sums(x.device, across * down, grid[1], tiling)
    _kernel(rung, weight.group_size, weight.form).launch(grid, WARP * tiling.warps, arguments)


def _shared_sums(device: torch.device, tiles: int, blocks: int, tiling: Tiling) -> list[Tensor]:
    """Room for what ``blocks`` blocks add up for each of ``tiles`` tiles, and the counters of those that are done."""
    sums = torch.empty(tiles, blocks, tiling.rows * tiling.outputs, dtype=torch.float32, device=device)
    return [sums, arrival_counters(device, tiles)]
