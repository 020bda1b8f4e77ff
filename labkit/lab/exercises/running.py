"""Running a learner's CUDA text on the simulator: what does not compile or run becomes a hint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import labkit.sim
from labkit.errors import KernelArgumentError, KernelBuildError

_given: Counter[str] = Counter()  # how often each hint was asked for


def staged(question: str, rule: str) -> str:
    """A hint in two stages: at first only the question to ask oneself, from the second failure on the rule as well."""
    _given[rule] += 1
    return question if _given[rule] == 1 else f"{question} {rule}"


def simulate(source: str, name: str, grid: Any, block: Any, args: Sequence[Any], **settings: Any) -> Any:
    """``labkit.sim.run``, but text that does not compile or has other parameters raises AssertionError with a hint."""
    assert isinstance(source, str), "Give the CUDA source as a string."
    try:
        return labkit.sim.run(source, name=name, grid=grid, block=block, args=args, **settings)
    except KernelBuildError as error:
        raise AssertionError(f"It does not compile.\n{error.place or error}") from None
    except KernelArgumentError as error:
        raise AssertionError(f"The kernel is called as in the text above it. {error}") from None


def first_finding(result: Any) -> str:
    """What the simulator complains of first; "" if there is nothing."""
    return str(result.findings[0]) if result.findings else ""
