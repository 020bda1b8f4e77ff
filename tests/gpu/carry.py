"""Compile every kernel that tests/gpu/test_ops.py launches, for a GPU machine whose own NVRTC knows no sm_70.

python tests/gpu/carry.py build/gpu-kernels          # on any machine with NVRTC 12
LABKIT_KERNEL_DIR=build/gpu-kernels make test-gpu    # on the GPU machine
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.ops import LARGE, SMALL, cases, check

from labkit.device import Kernel, use_executor
from labkit.device.build_all import Wanted, build_all


class Recorded(Exception):
    """Raised in place of a launch: what follows in a check is of no interest."""


def wanted() -> list[Wanted]:
    """The kernels of all cases, each once."""
    kernels: dict[str, Wanted] = {}

    def record(self: Kernel, *arguments: Any) -> None:
        item = Wanted(self.op, self.rung, dict(self.macros), (self.entry,))
        kernels.setdefault(f"{self.op}/{self.rung} {sorted(self.macros.items())}", item)
        raise Recorded

    with mock.patch.object(Kernel, "launch", record), use_executor("sim"):
        for op, rung, shape in [*cases(SMALL), *cases(LARGE)]:
            try:
                check(op, rung, shape, "cpu")
            except Recorded:
                continue
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
