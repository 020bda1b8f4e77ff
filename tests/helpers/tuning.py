"""A small tuning table, as `labkit tune` would have left it."""

from __future__ import annotations

from collections.abc import Mapping

from labkit.ops.tuning_table import Measured, TuningTable, WeightShape

INT4 = WeightShape("int4", 4096, 5120, 128)
HALF = WeightShape("half", 24, 5120, 0)
DATE = "2026-11-30T12:00:00+00:00"


def row(shape: WeightShape, rows: int, seconds: Mapping[str, float]) -> Measured:
    """A measurement of one fixed day."""
    return Measured(shape, rows, seconds, DATE)


def some_table(device: str) -> TuningTable:
    """Two shapes, measured on ``device`` at 1 and 8 or 1 and 64 rows."""
    measured = (
        row(INT4, 64, {"dequant_matmul": 9e-5, "awq_gemm/4_small_m": 8e-5, "awq_gemm/5_large_tile": 7e-5}),
        row(INT4, 1, {"dequant_matmul": 9e-5, "awq_gemv": 1e-5, "awq_gemm/4_small_m": 2e-5}),
        row(HALF, 1, {"gemv_half": 2e-6, "matmul": 3e-6}),
        row(HALF, 8, {"gemv_half": 4e-6, "matmul": 3e-6}),
    )
    return TuningTable(device, "570.86.10", "12.8", "2.10.0", "0.2.0", "digest", measured)
