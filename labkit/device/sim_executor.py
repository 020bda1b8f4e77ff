"""The executor ``sim``: kernels on the simulator, on torch's CPU tensors in place.

A finding is an error of the kernel and ends the program like any other. ``recorded_launches`` lets it go on instead,
counts what each launch would cost, and keeps what the simulator saw: for tests and lessons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from labkit.device.kernel import Facts, Launch
from labkit.errors import KernelLaunchError
from labkit.sim import machine
from labkit.sim.api import Result
from labkit.sim.findings import Findings
from labkit.sim.load import load_ptx
from labkit.sim.options import Observers, Options
from labkit.sim.races import Races
from labkit.sim.source import Program
from labkit.sim.trace import counters_for
from labkit.sim.variables import read_variables

UNRECORDED = Options(counters=False)

_options: ContextVar[Options] = ContextVar("options", default=UNRECORDED)
_record: ContextVar[list[Result] | None] = ContextVar("record", default=None)


@contextmanager
def recorded_launches(options: Options | None = None) -> Iterator[list[Result]]:
    """The results of all simulated launches inside, in order; findings are kept there instead of raised."""
    results: list[Result] = []
    chosen, record = _options.set(options or Options()), _record.set(results)
    try:
        yield results
    finally:
        _options.reset(chosen)
        _record.reset(record)


@contextmanager
def simulated_with(options: Options) -> Iterator[None]:
    """Simulated launches inside run with these options; findings are raised."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


def launch(launch: Launch) -> None:
    """Run once. Raises KernelLaunchError for what the simulator finds, unless it is being recorded."""
    options = _options.get()
    result = _run(launch, options)
    record = _record.get()
    if record is not None:
        record.append(result)
    elif not result.ok:
        raise _error(launch, result)


def bind(launch_once: Launch) -> Callable[[], None]:
    """The same as a call without arguments."""
    return lambda: launch(launch_once)


def _run(launch: Launch, options: Options) -> Result:
    program = _program(launch.facts, launch.kernel.entry, options.exact_fma)
    findings = Findings(program.kernel, launch.grid, launch.block)
    observers = Observers(
        findings,
        Races(findings, launch.grid, launch.block) if options.races else None,
        counters_for(program.kernel, options),
    )
    done = machine.launch(
        program.kernel,
        launch.grid,
        launch.block,
        [0 if argument is None else argument for argument in launch.arguments],
        launch.shared_bytes,
        options=options,
        observers=observers,
    )
    left = read_variables(machine.device(), program.kernel.module)
    return Result(program, findings.as_list(), observers.counters, done.output, done.instructions, done.finished, left)


@cache
def _program(facts: Facts, entry: str, exact_fma: bool) -> Program:
    ptx, source = facts.image.ptx, facts.source
    return Program(load_ptx(ptx, exact_fma=exact_fma).kernels[entry], source.text, ptx, source.name)


def _error(launch: Launch, result: Result) -> KernelLaunchError:
    first = str(result.findings[0]) if result.findings else "it did not come to its end"
    more = f" ({len(result.findings) - 1} more findings)" if len(result.findings) > 1 else ""
    cure = "Correct the kernel; inside recorded_launches() it goes on, and every finding is listed."
    return KernelLaunchError(f"{launch.kernel} on the simulator: {first}{more}.", cure=cure)
