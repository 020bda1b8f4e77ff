"""The rungs of the INT4 GEMV on the simulator, judged against the exact product: what chapter 06 shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import labkit.sim
from labkit.device import Kernel
from labkit.device import main_loop as loops
from labkit.device.machine_code import Instruction, decode
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
DOT = "IDP"  # the machine code of dp4a


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


def main_loop(rung: str, rows: int = 1, *, third_byte: bool = False) -> tuple[dict[str, int], int]:
    """(instruction of a V100's machine code -> times in one pass of the main loop, weights of a lane in such a pass).

    For x of up to ``rows`` rows. What lies around the loop is not in it. The last rung's pass takes one of two ways:
    two bytes of x, or ``third_byte``. Raises KernelBuildError.
    """
    kernel = Kernel("awq_gemv", rung, "awq_gemv", macros(GROUP, FORM, rows))
    loop = loops.main_loop(decode(kernel.image.cubins["sm_70"], kernel.entry))
    if rung == RUNGS[-1]:
        loop = sorted(_two_ways(loop), key=lambda way: sum(each.name == DOT for each in way))[third_byte]
    weights = WORD if rung == RUNGS[0] else BATCH * (2 if rung == RUNGS[-1] and rows > 1 else 1)
    return dict(Counter(each.name for each in loop).most_common()), weights


def _two_ways(loop: Sequence[Instruction]) -> tuple[list[Instruction], list[Instruction]]:
    """A loop without the first, and without the second, of the two branches of its ``if`` with the most products.

    Where a branch goes forward to a place before which another branch goes further still, one branch of an ``if`` lies
    between the first and that place, the other from there to where the second goes.
    """
    places = {each.address: place for place, each in enumerate(loop)}
    found = []
    for place, each in enumerate(loop):
        other = places.get(each.target, 0) if each.target is not None else 0
        join = places.get(loop[other - 1].target or 0, 0)
        if place < other - 1 and other < join:
            found.append((place + 1, other, join))
    first, other, join = max(found, key=lambda span: sum(each.name == DOT for each in loop[span[0] : span[2]]))
    return [*loop[:first], *loop[other:]], [*loop[:other], *loop[join:]]
