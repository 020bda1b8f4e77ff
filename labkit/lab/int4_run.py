"""One run of a kernel over an INT4 weight on the simulator, judged against the exact product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.lab.op_counts import CountedRun
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import PackedInt4, pack, unpack
from labkit.sim.api import Result

FORM: Form = "scale_zero"


@dataclass(frozen=True)
class Int4Run(CountedRun):
    """A rung's run. x: fp16 [rows, K]; y: fp16 [rows, N], what it gave.

    tolerance: of a row of y, as the 2-norm of its error over its own.
    """

    rung: str
    x: Tensor
    weight: PackedInt4
    y: Tensor
    result: Result

    tolerance = 2e-3

    @property
    def matches(self) -> bool:
        """Every row agrees with the exact product with the dequantized weight."""
        exact = self.x.double() @ unpack(self.weight).dequantize().double().T
        errors = (self.y.double() - exact).norm(dim=1) / exact.norm(dim=1)
        return bool((errors <= self.tolerance).all())

    @property
    def without_moves(self) -> int:
        """PTX instructions of the warps, moves left out: those between registers mostly vanish."""
        kinds = {kind: warps for kind, (warps, _) in self.counters.instructions().items()}
        return self.counters.total().warp_instructions - kinds.get("move", 0)


def random_int4_operands(rows: int, outputs: int, inputs: int, group: int) -> tuple[Tensor, PackedInt4]:
    """x [rows, K] and a packed weight [N, K] with every nibble and zero point from 0 to 15."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    scale = (torch.rand(outputs, inputs // group, 1) + 0.5) * inputs**-0.5
    groups = torch.cat((scale, torch.randint(0, 16, scale.shape).float()), dim=-1).half()
    return torch.randn(rows, inputs).half(), pack(Int4Weight.from_nibbles(q, groups, FORM))
