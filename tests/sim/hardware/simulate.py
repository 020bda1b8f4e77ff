"""The same cases and programs on the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sim.hardware.case import Case, module_text
from sim.hardware.compare import join_regions
from sim.hardware.operands import Bits
from sim.hardware.programs import Buffers, Program
from sim.hardware.rungs import RungLaunch, placed

from labkit.sim.counters import Counters
from labkit.sim.findings import Finding, Findings
from labkit.sim.load import load_ptx
from labkit.sim.machine import launch
from labkit.sim.memory import Device
from labkit.sim.options import Observers
from labkit.sim.races import Races


def simulate_case(case: Case, inputs: list[Bits]) -> np.ndarray:
    """The output buffer (uint8) that the simulator leaves; a fault of the case raises KernelLaunchError."""
    kernel = load_ptx(module_text([case]), exact_fma=True).kernels[case.entry]
    given = join_regions(case, case.input_types, inputs)
    out = np.zeros(max(case.offsets(list(case.outputs))[-1], 16), np.uint8)
    launch(kernel, case.blocks, case.threads // case.blocks, [given, out])
    return out


def simulate_program(program: Program) -> tuple[Buffers, list[Finding], list[Counters]]:
    """All launches with all checks on: the buffers afterwards, what the checks found, and each launch's counters."""
    module = load_ptx(program.ptx.read_text(), exact_fma=True)
    buffers = program.buffers()
    found: list[Finding] = []
    counted: list[Counters] = []
    gpu = Device(0)  # a new one: variables of the module start with their initial values
    for step in program.launches:
        kernel = module.kernels[step.entry]
        arguments: list[Any] = [buffers[a] if isinstance(a, str) else a for a in step.arguments]
        findings = Findings(kernel, step.grid, step.block)
        watchers = Observers(findings, Races(findings, step.grid, step.block), Counters(kernel))
        launch(kernel, step.grid, step.block, arguments, step.shared_bytes, gpu, observers=watchers)
        found += findings.as_list()
        counted.append(watchers.counters)
    return buffers, found, counted


def simulate_rung(launch_: RungLaunch) -> dict[int, np.ndarray]:
    """Repeat a captured launch; the bytes of each tensor argument afterwards, by position."""
    kernel = load_ptx(launch_.ptx, exact_fma=True).kernels[launch_.entry]
    arguments = [a if isinstance(a, np.generic) else placed(a[0], a[1]) for a in launch_.arguments]
    launch(kernel, launch_.grid, launch_.block, arguments, launch_.shared_bytes)
    return {number: a for number, a in enumerate(arguments) if isinstance(a, np.ndarray)}
