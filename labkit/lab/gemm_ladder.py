"""The rungs of the INT4 GEMM on the simulator, judged against the exact product: what chapter 07 shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import labkit.sim
from labkit.errors import KernelArgumentError
from labkit.lab.changed_rung import changed_rung
from labkit.lab.op_counts import simulated
from labkit.ops.awq_gemm import TILINGS, awq_gemm, macros
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import PackedInt4, pack, unpack
from labkit.sim.api import Result
from labkit.sim.counters import Counters
from labkit.sim.findings import Finding

GROUP, LANES = 64, 32
FORM: Form = "scale_zero"
TOLERANCE = 2e-3  # of a row of y, as the 2-norm of its error over its own
SHARED_SUMS = "4_small_m"  # its blocks share K, so it takes more arguments than the others


@dataclass(frozen=True)
class GemmRun:
    """A rung's run on random numbers. x: fp16 [rows, K]; y: fp16 [rows, N], what it gave."""

    rung: str
    x: Tensor
    weight: PackedInt4
    y: Tensor
    result: Result

    @property
    def matches(self) -> bool:
        """Every row agrees with the exact product with the dequantized weight."""
        exact = self.x.double() @ unpack(self.weight).dequantize().double().T
        errors = (self.y.double() - exact).norm(dim=1) / exact.norm(dim=1)
        return bool((errors <= TOLERANCE).all())

    @property
    def findings(self) -> list[Finding]:
        """What the simulator found."""
        return self.result.findings

    @property
    def counters(self) -> Counters:
        """What the launch would cost; a Trace where one was asked for."""
        assert self.result.counters is not None  # for the type checker: these runs are always counted
        return self.result.counters

    @property
    def useful(self) -> float:
        """The share of what the tensor cores computed that belongs to y."""
        (rows, inputs), outputs = self.x.shape, self.weight.outputs
        return rows * outputs * inputs / (8 * 32 * 4 * self.counters.mma)

    @property
    def besides(self) -> float:
        """PTX instructions besides the mma for each mma, moves left out: those between registers mostly vanish."""
        kinds = {kind: warps for kind, (warps, _) in self.counters.instructions().items()}
        return (self.counters.total().warp_instructions - kinds.get("move", 0) - self.counters.mma) / self.counters.mma


def random_operands(rows: int, outputs: int, inputs: int) -> tuple[Tensor, PackedInt4]:
    """x [rows, K] and a packed weight [N, K] in groups of 64 with every nibble and zero point from 0 to 15."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    scale = (torch.rand(outputs, inputs // GROUP, 1) + 0.5) * inputs**-0.5
    groups = torch.cat((scale, torch.randint(0, 16, scale.shape).float()), dim=-1).half()
    return torch.randn(rows, inputs).half(), pack(Int4Weight.from_nibbles(q, groups, FORM))


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
