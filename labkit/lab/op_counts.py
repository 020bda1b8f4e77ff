"""What an operation's kernel costs, counted on the simulator while the operation runs as the engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.device.executor import use_executor
from labkit.device.sim_executor import recorded_launches
from labkit.errors import KernelLaunchError
from labkit.sim.api import Result
from labkit.sim.counters import Counters
from labkit.sim.findings import Finding
from labkit.sim.options import Options


class CountedRun:
    """What every run of a rung on the simulator tells: a class with a field ``result`` derives from it."""

    result: Result

    @property
    def findings(self) -> list[Finding]:
        """What the simulator found."""
        return self.result.findings

    @property
    def counters(self) -> Counters:
        """What the launch would cost; a Trace where one was asked for."""
        assert self.result.counters is not None  # for the type checker: these runs are always counted
        return self.result.counters


def simulated(
    operation: Callable[..., Any], *arguments: Any, trace: bool = False, **settings: Any
) -> tuple[Any, Result]:
    """(what the operation returns, what its one launch on the simulator showed).

    arguments, settings: of the operation; its tensors lie on the CPU. trace: keep the addresses of every warp.
    Raises KernelLaunchError if the operation launched no kernel, or several.
    """
    with use_executor("sim"), recorded_launches(Options(trace=trace)) as results:
        returned = operation(*arguments, **settings)
    if len(results) != 1:
        name = getattr(operation, "__name__", str(operation))
        raise KernelLaunchError(
            f"{name} launched {len(results)} kernels; one was expected.", cure="Count an operation with one kernel."
        )
    return returned, results[0]


def count(operation: Callable[..., Any], *arguments: Any, **settings: Any) -> Counters:
    """The counters of an operation's launch; arguments and errors as of ``simulated``."""
    _, result = simulated(operation, *arguments, **settings)
    if result.counters is None:
        raise KernelLaunchError("The launch was not counted.", cure="Count with the default options.")
    return result.counters
