"""Running a learner's CUDA text on the simulator: what does not compile or run becomes a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import labkit.sim
from labkit.errors import KernelArgumentError, KernelBuildError


def simulate(source: str, name: str, grid: Any, block: Any, args: Sequence[Any], **settings: Any) -> Any:
    """``labkit.sim.run``, but text that does not compile or has other parameters raises AssertionError with a hint."""
    assert isinstance(source, str), "Give the CUDA source as a string."
    try:
        return labkit.sim.run(source, name=name, grid=grid, block=block, args=args, **settings)
    except KernelBuildError as error:
        raise AssertionError(f"It does not compile.\n{first_error(error)}") from None
    except KernelArgumentError as error:
        raise AssertionError(f"The kernel is called as in the text above it. {error}") from None


def first_error(error: KernelBuildError) -> str:
    """The compiler's first error with the lines around it, which point at the place."""
    lines = (error.log or str(error)).splitlines()
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + 3])


def first_finding(result: Any) -> str:
    """What the simulator complains of first; "" if there is nothing."""
    return str(result.findings[0]) if result.findings else ""
