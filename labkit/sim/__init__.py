"""A V100 in NumPy: runs the PTX of CUDA kernels on any machine, checks them, and counts what they would cost.

from labkit.sim import run
result = run(source, name="k", grid=(1, 1, 1), block=(64, 1, 1), args=[tensor])
result.findings, result.counters
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.sim.annotation import annotate
    from labkit.sim.api import Out, Result, run
    from labkit.sim.stepping import Stepper

__all__ = ["Out", "Result", "Stepper", "annotate", "run"]

# Loaded on first use: `labkit sim --help` prints without NumPy, and the machine needs no compiler.
_HOMES = {
    "Out": "labkit.sim.api",
    "Result": "labkit.sim.api",
    "run": "labkit.sim.api",
    "Stepper": "labkit.sim.stepping",
    "annotate": "labkit.sim.annotation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
