"""A V100 in NumPy: runs the PTX of CUDA kernels on any machine, checks them, and counts what they would cost.

from labkit.sim import run
result = run(source, name="k", grid=(1, 1, 1), block=(64, 1, 1), args=[tensor])
result.findings, result.counters

Races are judged by what happened in one order of the threads; ``shuffle_seed`` tries others. Some faults are not seen:

- volatile data that a loop compares before it goes on: it is taken for a flag,
- a missing fence after a flag that was read by an atomic, if a barrier follows (see ``labkit.sim.fences``),
- masks that disagree between lanes which come to a warp operation one after the other.
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
