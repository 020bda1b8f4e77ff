"""Runs kernels: one launch, or several on different simulated devices that talk to each other.

A launch starts with all threads at the first basic block. As long as they agree on where to go, each step runs one
block for all of them at once. When they part, `labkit.sim.schedule` picks groups, until all of them meet again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.device.geometry import MAX_BLOCK, MAX_GRID
from labkit.device.occupancy import DEFAULT_BLOCK_SHARED, MAX_BLOCK_SHARED, MAX_BLOCK_THREADS
from labkit.errors import KernelArgumentError, KernelLaunchError
from labkit.sim.buffers import keep_freed_memory
from labkit.sim.launched import Run
from labkit.sim.memory import Device, Memory
from labkit.sim.options import NOBODY, LaunchResult, Observers, Options
from labkit.sim.program import Kernel

MAX_THREADS = 1 << 24  # of a launch: the simulator keeps the registers of all of them in memory

_devices: dict[int, Device] = {}
keep_freed_memory()


def device(number: int = 0) -> Device:
    """The simulated GPU of that number; its module variables stay from launch to launch."""
    return _devices.setdefault(number, Device(number))


@dataclass
class Launch:
    """Everything that one launch needs.

    Args:
        kernel: from load_ptx.
        grid, block: one to three numbers each.
        arguments: tensors, arrays, numbers, bytes (structs), or Out(tensor), one for each parameter.
        shared_bytes: dynamic shared memory.
        device: number of the simulated GPU, or a Device.
        reachable: further tensors that the kernel finds through pointers in memory.
    """

    kernel: Kernel
    grid: int | Sequence[int]
    block: int | Sequence[int]
    arguments: Sequence[Any]
    shared_bytes: int = 0
    device: int | Device = 0
    options: Options = field(default_factory=Options)
    observers: Observers = NOBODY
    reachable: Sequence[Any] = ()

    def prepare(self, memory: Memory | None = None) -> Run:
        """Check everything, make the arguments accessible, and stand ready at the first instruction.

        Raises KernelArgumentError for arguments, KernelLaunchError for a shape that a V100 would refuse.
        """
        grid, block = three("grid", self.grid, MAX_GRID), three("block", self.block, MAX_BLOCK)
        check_shape(self.kernel, grid, block, self.shared_bytes)
        home = self.device if isinstance(self.device, Device) else device(self.device)
        memory = Memory() if memory is None else memory
        for number, tensor in enumerate(self.reachable):
            memory.add(tensor, f"reachable tensor {number}", home.number)
        return Run(self, grid, block, memory, home)


def launch(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Sequence[Any],
    shared_bytes: int = 0,
    device: int | Device = 0,
    options: Options | None = None,
    observers: Observers = NOBODY,
    reachable: Sequence[Any] = (),
) -> LaunchResult:
    """Run a kernel to its end, on its arguments in place; see Launch.

    Faults go to ``observers.findings``; without one, the first raises KernelLaunchError.
    """
    wanted = Launch(kernel, grid, block, arguments, shared_bytes, device, options or Options(), observers, reachable)
    return wanted.prepare().finish()


def launch_together(launches: Sequence[Launch]) -> list[LaunchResult]:
    """Run several launches at the same time, in one address space: they may wait for each other's flags.

    They take turns: each runs until it has looked for news in vain, or for a few hundred steps.
    """
    memory = Memory()
    runs = [each.prepare(memory) for each in launches]
    while any(not run.done for run in runs):
        for run in runs:
            run.advance()
    return [run.result() for run in runs]


def three(what: str, given: int | Sequence[int], limits: tuple[int, int, int]) -> tuple[int, int, int]:
    """Grid or block as three numbers, each within what a V100 allows."""
    numbers = (given,) if isinstance(given, int | np.integer) else tuple(given)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, int | np.integer) for n in numbers):
        raise KernelArgumentError(f"The {what} is {given!r}.", cure="Give one to three integers.")
    x, y, z = (int(n) for n in (*numbers, *(1,) * (3 - len(numbers))))
    for size, limit in zip((x, y, z), limits, strict=True):
        if not 1 <= size <= limit:
            raise KernelLaunchError(
                f"The {what} is {(x, y, z)}.", cure=f"Stay within 1 and {limits} in each dimension."
            )
    return x, y, z


def check_shape(kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int) -> None:
    """Raises KernelLaunchError if a V100 could not run such a block, or the simulator so many of them."""
    threads = block[0] * block[1] * block[2]
    limit = kernel.max_threads or MAX_BLOCK_THREADS
    if threads > limit:
        raise KernelLaunchError(f"A block of {kernel.name} has {threads} threads.", cure=f"Use at most {limit}.")
    if threads * grid[0] * grid[1] * grid[2] > MAX_THREADS:
        raise KernelLaunchError(
            f"A grid of {grid} blocks of {threads} threads is too large to simulate.",
            cure=f"Use at most {MAX_THREADS:,} threads in all; a smaller problem shows the same.",
        )
    if kernel.shared_bytes > DEFAULT_BLOCK_SHARED:
        raise KernelLaunchError(
            f"A block of {kernel.name} has {kernel.shared_bytes:,} bytes of static shared memory.",
            cure=f"Use at most {DEFAULT_BLOCK_SHARED:,}; what exceeds them has to be dynamic.",
        )
    total = kernel.shared_bytes + shared_bytes
    if shared_bytes < 0 or total > MAX_BLOCK_SHARED:
        raise KernelLaunchError(
            f"A block of {kernel.name} wants {total:,} bytes of shared memory.",
            cure=f"Use at most {MAX_BLOCK_SHARED:,}, the static ones included.",
        )
