"""The rungs of the INT4 GEMM on the simulator, judged against the exact product: what chapter 07 shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import labkit.sim
from labkit.errors import KernelArgumentError
from labkit.lab.changed_rung import changed_rung
from labkit.lab.int4_run import FORM, Int4Run, random_int4_operands
from labkit.lab.op_counts import simulated
from labkit.ops.awq_gemm import TILINGS, awq_gemm, macros
from labkit.quant.pack import PackedInt4

GROUP, LANES = 64, 32
SHARED_SUMS = "4_small_m"  # its blocks share K, so it takes more arguments than the others


@dataclass(frozen=True)
class GemmRun(Int4Run):
    """A rung's run on random numbers."""

    @property
    def useful(self) -> float:
        """The share of what the tensor cores computed that belongs to y."""
        (rows, inputs), outputs = self.x.shape, self.weight.outputs
        return rows * outputs * inputs / (8 * 32 * 4 * self.counters.mma)

    @property
    def besides(self) -> float:
        """PTX instructions besides the mma for each mma, moves left out: those between registers mostly vanish."""
        return (self.without_moves - self.counters.mma) / self.counters.mma


def random_operands(rows: int, outputs: int, inputs: int) -> tuple[Tensor, PackedInt4]:
    """x [rows, K] and a packed weight [N, K] in groups of 64 with every nibble and zero point from 0 to 15."""
    return random_int4_operands(rows, outputs, inputs, GROUP)


def run_rung(rung: str, rows: int, outputs: int, inputs: int, *, trace: bool = False) -> GemmRun:
    """Run a rung as the op launches it; inputs: K, a multiple of 64."""
    x, weight = random_operands(rows, outputs, inputs)
    y, result = simulated(awq_gemm, x, weight, rung=rung, trace=trace)
    return GemmRun(rung, x, weight, y, result)


def run_changed(rung: str, old: str, new: str, rows: int, outputs: int, inputs: int, *, trace: bool = False) -> GemmRun:
    """Run a rung with ``new`` in place of ``old``, in its file or in a header of it, wherever ``old`` stands.

    Raises ValueError if it stands nowhere, and KernelArgumentError for ``4_small_m``. Raises KernelBuildError.
    """
    if rung == SHARED_SUMS:
        raise KernelArgumentError(f"{rung} takes more arguments than the others.", cure="Change another rung.")
    x, weight = random_operands(rows, outputs, inputs)
    y, tiling = torch.zeros(rows, outputs, dtype=torch.float16), TILINGS[rung]
    with changed_rung("awq_gemm", rung, old, new) as (file, folder):
        result = labkit.sim.run(
            file,
            name="awq_gemm",
            grid=(-(-rows // tiling.rows), -(-outputs // tiling.outputs)),
            block=LANES * tiling.warps,
            args=[x, weight.data, y, rows, outputs, inputs // GROUP],
            macros=macros(GROUP, FORM),
            include_dirs=[folder],
            trace=trace,
        )
    return GemmRun(rung, x, weight, y, result)
