"""Host microseconds of one launch of a kernel with eight parameters: prepared, and with all checks.

    python tests/gpu/launch_cost.py

Queued on an idle stream in runs short enough for the queue; best of many runs, since the host's noise only adds.
Measured on 2026-11-30 beside an H200 (torch 2.11.0, CuPy 14.2.0, driver 580.159.04): prepared 6.6 us, checked 19.2 us,
and 5.6 us for one torch.add.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.probe import probe, use_probe

RUNS, LAUNCHES = 40, 200


def microseconds(launch: Callable[[], object]) -> float:
    """Best host time of one call."""
    best = float("inf")
    for _ in range(RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        best = min(best, (time.perf_counter() - start) / LAUNCHES)
    return best * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        use_probe(Path(scratch), patch)
        a, b, c, y = (torch.zeros(64, device="cuda") for _ in range(4))
        kernel, arguments = probe("many"), [a, b, c, y, 1, 2, 0.5, 0.25]
        prepared = kernel.bind(1, 32, arguments)
        print(f"device    {torch.cuda.get_device_name()}, torch {torch.__version__}")
        print(f"prepared  {microseconds(prepared):6.2f} us")
        print(f"checked   {microseconds(lambda: kernel.launch(1, 32, arguments)):6.2f} us")
        print(f"torch     {microseconds(lambda: torch.add(a, b, out=y)):6.2f} us (one torch.add, for comparison)")


if __name__ == "__main__":
    main()
