"""What may compute x W^T on the simulator and on a GPU: the candidates among which `tuning` chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from labkit.device.cache import digest
from labkit.device.ladder import Macros
from labkit.device.sources import read_rung
from labkit.ops import awq_gemm, awq_gemv, dequant_int4, gemv_half, gemv_int8
from labkit.ops.checks import named_sizes
from labkit.ops.gemv import MOST_ROWS, ROW_CLASSES, row_class
from labkit.ops.half_matmul import half_matmul, int8_matmul
from labkit.ops.tuning_table import WeightShape
from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int4 import Form
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import PackedInt4

KernelWeight = PackedInt4 | Int8Weight | Tensor
PRODUCTS = ("awq_gemv", "awq_gemm", "dequant_int4", "gemv_half", "gemv_int8")  # operations that they launch
SMALL_M, LARGE_TILE = "4_small_m", "5_large_tile"  # of awq_gemm

# (x [M, K], weight, workspace, residual [M, N] or None) -> [M, N]
Candidate = Callable[[Tensor, Any, HalfWorkspace, Tensor | None], Tensor]


class Build(NamedTuple):
    """One rung with one set of macros."""

    op: str
    rung: str
    macros: Macros


def _plus(y: Tensor, residual: Tensor | None) -> Tensor:
    if residual is None:
        return y
    named_sizes("linear", {"residual": (residual, y.dtype, tuple(y.shape))})  # torch would spread one row over all
    return residual + y


# As `tuning_table.CANDIDATES` lists them. The matrix-vector kernels add the residual to their fp32 sums.
CANDIDATES: Mapping[str, Mapping[str, Candidate]] = {
    "int4": {
        "awq_gemv": lambda x, w, space, r: awq_gemv.awq_gemv(x, w, residual=r),
        "awq_gemm/4_small_m": lambda x, w, space, r: _plus(awq_gemm.awq_gemm(x, w, rung=SMALL_M), r),
        "awq_gemm/5_large_tile": lambda x, w, space, r: _plus(awq_gemm.awq_gemm(x, w, rung=LARGE_TILE), r),
        "dequant_matmul": lambda x, w, space, r: _plus(dequant_int4.dequant_matmul(x, w, space), r),
    },
    "int8": {
        "gemv_int8": lambda x, w, space, r: gemv_int8.gemv_int8(x, w, residual=r),
        "dequant_matmul": lambda x, w, space, r: _plus(int8_matmul(x, w, space), r),
    },
    "half": {
        "gemv_half": lambda x, w, space, r: gemv_half.gemv_half(x, w, residual=r),
        "matmul": lambda x, w, space, r: _plus(half_matmul(x, w), r),
    },
}


def builds(name: str, shape: WeightShape, form: Form, most_rows: int | None) -> list[Build]:
    """What candidate ``name`` launches on weights of a shape, in calls with up to ``most_rows`` rows."""
    classes = [size for size in ROW_CLASSES if size <= row_class(min(most_rows or MOST_ROWS, MOST_ROWS))]
    match name:
        case "gemv_half":
            return [Build(name, gemv_half.RUNGS[-1], gemv_half.macros(rows, shape.inputs)) for rows in classes]
        case "gemv_int8":
            return [Build(name, gemv_int8.RUNGS[-1], gemv_int8.macros(rows, shape.group)) for rows in classes]
        case "awq_gemv":
            return [Build(name, awq_gemv.RUNGS[-1], awq_gemv.macros(shape.group, form, rows)) for rows in classes]
        case "awq_gemm/4_small_m" | "awq_gemm/5_large_tile":
            return [Build("awq_gemm", name.partition("/")[2], awq_gemm.macros(shape.group, form))]
        case "dequant_matmul" if shape.kind == "int4":
            return [Build("dequant_int4", dequant_int4.RUNGS[-1], dequant_int4.macros(shape.group, form))]
    return []


def timed_kernels() -> str:
    """A digest of all candidates' sources: a table that was measured with others may be out of date."""
    used = [("awq_gemm", SMALL_M), ("awq_gemm", LARGE_TILE)]
    used += [(op.__name__.rpartition(".")[2], op.RUNGS[-1]) for op in (awq_gemv, dequant_int4, gemv_half, gemv_int8)]
    return digest([[op, rung, read_rung(op, rung).digest] for op, rung in used])
