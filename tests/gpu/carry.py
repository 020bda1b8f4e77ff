"""Compile every kernel that tests/gpu launches, for a GPU machine whose own NVRTC knows no sm_70.

python tests/gpu/carry.py build/gpu-kernels          # on any machine with NVRTC 12
LABKIT_KERNEL_DIR=build/gpu-kernels make test-gpu    # on the GPU machine
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.accuracy import Shape
from helpers.gpu_models import launched_kernels
from helpers.ops import LARGE, SMALL, cases, check

from labkit.device import Kernel, use_executor
from labkit.device.build_all import Wanted, build_all
from labkit.device.ladder import Macros
from labkit.ops.ladders import LADDERS

# Kernels that are compiled alike for weights of any size: a small one will do, where a large one takes seconds to draw.
# Positions of outputs and inputs in a shape; inputs keep their remainder by 64, on which the width of loads depends.
SIZES = {"awq_gemv": (1, 2), "awq_gemv_silu_mul": (1, 2), "awq_gemm": (1, 2), "gemv_half": (1, 2), "gemv_int8": (1, 2)}


def _twin(places: tuple[int, int], shape: Shape) -> Shape:
    outputs, inputs = places
    small = list(shape)
    small[outputs] = 64
    small[inputs] = min(shape[inputs], 6400 + shape[inputs] % 64)
    return tuple(small)


TWINS = {op: partial(_twin, places) for op, places in SIZES.items()}


class Recorded(Exception):
    """Raised in place of a launch: what follows in a check is of no interest."""


def wanted() -> list[Wanted]:
    """The kernels of all cases, of linear layers and of whole models, each once."""
    kernels: dict[str, Wanted] = {}

    def keep(op: str, rung: str, macros: Macros, entries: tuple[str, ...]) -> None:
        kernels.setdefault(f"{op}/{rung} {sorted(macros.items())}", Wanted(op, rung, dict(macros), entries))

    def record(self: Kernel, *arguments: Any) -> None:
        keep(self.op, self.rung, self.macros, (self.entry,))
        raise Recorded

    with mock.patch.object(Kernel, "launch", record), use_executor("sim"):
        for op, rung, shape in [*cases(SMALL), *cases(LARGE)]:
            try:
                check(op, rung, TWINS.get(op, tuple)(shape), "cpu")
            except Recorded:
                continue
    in_models = list(launched_kernels())
    for ladder in LADDERS.values():  # which rung runs depends on the GPU
        launched = [kernel.macros for kernel in in_models if kernel.op == ladder.op]
        for macros in (*ladder.default_macros, *launched):
            for rung in ladder.in_use:
                keep(ladder.op, rung, macros, ladder.entries)
    return list(kernels.values())


def main() -> None:
    """Build them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = build_all(wanted(), "compute_70", folder)
    print(f"{len(rows)} kernels in {folder}")


if __name__ == "__main__":
    main()
