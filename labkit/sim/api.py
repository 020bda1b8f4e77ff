"""Run any CUDA kernel on the simulator: ``labkit.sim.run(source, name, grid, block, args)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from labkit.sim.annotation import annotate
from labkit.sim.buffers import Out
from labkit.sim.check_arguments import check_arguments
from labkit.sim.counters import Counters
from labkit.sim.findings import Finding, Findings
from labkit.sim.machine import device, launch
from labkit.sim.options import MAX_STEPS, Observers, Options
from labkit.sim.races import Races
from labkit.sim.source import Program, load_program
from labkit.sim.symbols import plain_name
from labkit.sim.trace import counters_for
from labkit.sim.variables import find_variable, read_variables, set_variables, typed

__all__ = ["Out", "Result", "run"]

Size = int | Sequence[int]


@dataclass(frozen=True)
class Result:
    """What a simulated launch showed. The arrays that it changed are those that were given."""

    program: Program
    findings: list[Finding] = field(repr=False)
    counters: Counters | None = field(repr=False)  # None with counters=False
    output: str = field(repr=False)  # what the kernel printed
    instructions: int  # PTX instructions run, each for many threads at once
    finished: bool  # False where a deadlock, a trap, or the step limit ended the launch
    variables: Mapping[str, Any] = field(repr=False)  # by symbol: the bytes of each at the end; see `variable`

    @property
    def ok(self) -> bool:
        """The kernel ran to its end and no check has anything to say."""
        return self.finished and not self.findings

    def variable(self, name: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """What a ``__device__`` or ``__constant__`` variable held after the launch: an array of one dimension.

        dtype: of its elements; left out, the type that the source declares, and bytes for structs. Raises
        KernelArgumentError where the kernels use no such variable.
        """
        module = self.program.kernel.module
        symbol = find_variable(module, name)
        return typed(self.variables[symbol], dtype, module.variables[symbol], self.program.text, name)

    def annotated(self) -> str:
        """The CUDA source with the counts of every line. "" where there are no counters or only PTX was given."""
        if self.counters is None or not self.program.text:
            return ""
        marked = {finding.line for finding in self.findings if finding.site.file == self.program.file}
        return annotate(self.program.text, self.counters, self.program.file, marked)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kernel": self.program.kernel.name,
            "ok": self.ok,
            "finished": self.finished,
            "findings": [finding.to_json() for finding in self.findings],
            "output": self.output,
            "counters": self.counters.to_json() if self.counters else None,
        }

    def __repr__(self) -> str:
        state = "ran" if self.finished else "was stopped"
        count = len(self.findings)
        verdict = "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
        name = plain_name(self.program.kernel.name)
        lines = [f"{name} {state}: {verdict}", *(f"  {finding}" for finding in self.findings)]
        return "\n".join(lines)


def run(
    source: str | Path,
    name: str | None = None,
    grid: Size = (1, 1, 1),
    block: Size = (64, 1, 1),
    args: Sequence[Any] = (),
    shared_bytes: int = 0,
    macros: Mapping[str, int | float | str] | None = None,
    *,
    checks: bool = True,
    counters: bool = True,
    trace: bool = False,
    exact_fma: bool = True,
    truncating_mma: bool = False,
    max_steps: int | None = None,
    shuffle_seed: int | None = None,
    include_dirs: Sequence[str | Path] = (),
    variables: Mapping[str, Any] | None = None,
) -> Result:
    """Compile a kernel for the V100 and run it here, with all checks and counters.

    Args:
        source: CUDA C++ or PTX, as text or as the path of a file.
        name: of the kernel: ``k``, ``ns::k``, ``k<double, 3>``; may be left out where the source has one only.
        grid, block: up to three dimensions.
        args: one for each parameter: torch CPU tensors and NumPy arrays (changed in place), ints, floats, bools, bytes
            (for a struct), None (a null pointer), or Out(tensor) for one that the kernel must fill completely.
            Arrays must be contiguous, and of the type that the kernel declares where that is a plain number.
        shared_bytes: dynamic shared memory of a block.
        macros: -D definitions.
        checks: look for races, uninitialized reads, unwritten outputs; bounds are tested always.
        counters: count what the launch would cost.
        trace: also keep the addresses that each warp asked for; ``.counters`` of the result is then a Trace.
        exact_fma: f32 fma with one rounding, as in hardware; False is two to three times as fast where it matters.
        truncating_mma: accumulate in mma as the V100's tensor cores do.
        max_steps: basic blocks after which a launch counts as endless.
        shuffle_seed: run diverged threads in a random, repeatable order.
        include_dirs: folders searched for headers.
        variables: values of ``__constant__`` and ``__device__`` variables by name, set before the launch as
            cudaMemcpyToSymbol would: arrays, tensors, numbers, bytes. All others hold what the source says, or zeros,
            or what the last launch of the same source left in them. So a constant that a program fills from the host
            has to be given here; ``Result.variable`` reads them afterwards.

    Raises:
        KernelBuildError: the source does not compile, or has no such kernel.
        KernelArgumentError: an argument does not fit its parameter, or a size is beyond a V100's limits.
        KernelLaunchError: more threads than the simulator can hold.
        ConfigError: max_steps or shuffle_seed is no such number.
        PtxError: PTX that the simulator does not know.
    """
    program = load_program(source, name, macros=macros, include_dirs=include_dirs, exact_fma=exact_fma)
    kernel = program.kernel
    checked_grid, checked_block, checked_args = check_arguments(program, grid, block, args, shared_bytes)
    home = device()
    set_variables(home, kernel.module, variables or {}, program.text)
    switches: dict[str, Any] = {"checks": checks, "races": checks, "counters": counters, "exact_fma": exact_fma}
    switches |= {"trace": trace, "truncating_mma": truncating_mma, "shuffle_seed": shuffle_seed}
    options = Options(**switches, max_steps=MAX_STEPS if max_steps is None else max_steps)
    findings = Findings(kernel, checked_grid, checked_block)
    watching = Observers(
        findings,
        Races(findings, checked_grid, checked_block) if checks else None,
        counters_for(kernel, options),
    )
    done = launch(kernel, checked_grid, checked_block, checked_args, shared_bytes, options=options, observers=watching)
    left = read_variables(home, kernel.module)
    return Result(program, findings.as_list(), watching.counters, done.output, done.instructions, done.finished, left)
