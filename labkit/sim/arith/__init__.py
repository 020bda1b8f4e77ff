"""Arithmetic of PTX on whole arrays: everything that generated code calls by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.sim.arith import bits, compare, convert, floating, half, integer, rational, rounding, video
from labkit.sim.types import NUMPY_TYPES

NAMESPACE: dict[str, Any] = {"np": np, **NUMPY_TYPES}
for _module in (integer, bits, rounding, rational, floating, half, convert, compare, video):
    NAMESPACE.update(
        (name, thing)
        for name, thing in vars(_module).items()
        if getattr(thing, "__module__", "") == _module.__name__ and not name.startswith("_")
    )
