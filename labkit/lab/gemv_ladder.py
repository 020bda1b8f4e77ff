"""The rungs of the INT4 GEMV on the simulator, judged against the exact product: what chapter 06 shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import labkit.sim
from labkit.device import Kernel
from labkit.device.main_loop import main_loop_mix
from labkit.errors import KernelArgumentError
from labkit.lab.changed_rung import changed_rung
from labkit.lab.int4_run import FORM, Int4Run, random_int4_operands
from labkit.lab.op_counts import simulated
from labkit.ops.awq_gemv import RUNGS, awq_gemv, macros
from labkit.quant.pack import TILE, PackedInt4
from labkit.sim.trace import Access, Trace

GROUP, LANES = 128, 32
CHANGEABLE = RUNGS[:3]  # the others share K among warps and blocks
WORD, BATCH = 8, 128  # weights of a lane in one pass of the main loop: of the first rung, and of the others


@dataclass(frozen=True)
class GemvRun(Int4Run):
    """A rung's run."""

    tolerance = 1e-3  # a half rounds by up to 5e-4

    @property
    def per_weight(self) -> float:
        """PTX instructions of a lane for each weight, moves left out: those between registers mostly vanish."""
        outputs, inputs = self.weight.shape
        return self.without_moves * LANES / (outputs * inputs)

    @property
    def weight_loads(self) -> list[Access]:
        """The loads of weights, scales and zero points by the first warp, in order; the run must have a trace."""
        trace = self.counters
        if not isinstance(trace, Trace):
            raise ValueError("run the rung with trace=True")
        start = self.weight.data.data_ptr()
        loads = trace.at(space="global", kind="load", warp=0)
        return [load for load in loads if start <= load.addresses[0] < start + self.weight.nbytes]


def random_operands(rows: int, outputs: int, inputs: int) -> tuple[Tensor, PackedInt4]:
    """x [rows, K] and a packed weight [N, K] in groups of 128 with every nibble and zero point from 0 to 15."""
    return random_int4_operands(rows, outputs, inputs, GROUP)


def run_rung(rung: str, x: Tensor, weight: PackedInt4, *, trace: bool = False) -> GemvRun:
    """Run a rung as the op launches it. x: fp16 [1 to 8, K]."""
    y, result = simulated(awq_gemv, x, weight, rung=rung, trace=trace)
    return GemvRun(rung, x, weight, y, result)


def run_changed(rung: str, old: str, new: str, x: Tensor, weight: PackedInt4) -> GemvRun:
    """Run one of the first three rungs with ``new`` in place of ``old``, in its file or in a header of it.

    Every place is changed where ``old`` stands. Raises ValueError if it stands nowhere, and KernelArgumentError for the
    other rungs. Raises KernelBuildError.
    """
    if rung not in CHANGEABLE:
        raise KernelArgumentError(f"{rung} is launched in another way.", cure=f"Change {', '.join(CHANGEABLE)}.")
    (rows, inputs), outputs = x.shape, weight.outputs
    y = torch.zeros(rows, outputs, dtype=torch.float16)
    settings = macros(weight.group_size, weight.form, rows)
    warps = settings["WARPS"]
    with changed_rung("awq_gemv", rung, old, new) as (file, folder):
        result = labkit.sim.run(
            file,
            name="awq_gemv",
            grid=(-(-outputs // (TILE * warps)), rows if rung == RUNGS[0] else 1),
            block=LANES * warps,
            args=[x, weight.data, None, y, None, None, rows, outputs, inputs // weight.group_size],
            macros=settings,
            include_dirs=[folder],
        )
    return GemvRun(rung, x, weight, y, result)


def main_loop(rung: str) -> tuple[dict[str, int], int]:
    """(instruction of a V100's machine code -> times in one pass of the main loop, weights of a lane in such a pass).

    For one row of x. What lies around the loop is not in it. Raises KernelBuildError.
    """
    kernel = Kernel("awq_gemv", rung, "awq_gemv", macros(GROUP, FORM, 1))
    return main_loop_mix(kernel.image.cubins["sm_70"], kernel.entry), WORD if rung == RUNGS[0] else BATCH
