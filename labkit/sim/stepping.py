"""A kernel run one source line at a time, for lessons.

    stepper = Stepper(source, grid=2, block=64, args=[x, y, 128])
    stepper.run_to(5)
    stepper.where()                         # {5: [(0, 0), (0, 1), ...]}
    stepper.registers(block=0, thread=3)    # {"%r1": 3, "%f1": 0.5, ...}
    print(stepper.listing())

The compiler mixes the instructions of neighbouring lines, so a line may be entered several times. Lines are those of
the source itself, as ints; a line of a header that it includes is written with the header's name: "tile.cuh:5".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.errors import ConfigError
from labkit.sim.check_arguments import check_arguments
from labkit.sim.coalescing import LANES, Selection
from labkit.sim.counters import Counters
from labkit.sim.findings import Finding, Findings
from labkit.sim.listing import side_by_side
from labkit.sim.load import load_ptx
from labkit.sim.machine import Launch
from labkit.sim.options import MAX_STEPS, Observers, Options
from labkit.sim.places import Line, in_order, main_file, ranges
from labkit.sim.program import Block, Kernel, Site
from labkit.sim.races import Races
from labkit.sim.source import load_program

Scalar = bool | int | float
Places = dict[Line, list[tuple[int, int]]]


class _Watch(Counters):
    """Counters that also know which registers have been written."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.written: dict[str, None] = {}  # in the order of their first writing

    def block(self, block: Block, threads: Selection) -> None:
        super().block(block, threads)
        self.written.update(dict.fromkeys(name for name in block.outputs if name.startswith("%")))


class Stepper:
    """A launch that waits before its first instruction.

    Args: as of labkit.sim.run; counters are always on.
    Raises: as labkit.sim.run.
    """

    def __init__(
        self,
        source: str | Path,
        name: str | None = None,
        grid: int | Sequence[int] = (1, 1, 1),
        block: int | Sequence[int] = (64, 1, 1),
        args: Sequence[Any] = (),
        shared_bytes: int = 0,
        macros: Mapping[str, int | float | str] | None = None,
        *,
        checks: bool = True,
        exact_fma: bool = True,
        truncating_mma: bool = False,
        max_steps: int | None = None,
        shuffle_seed: int | None = None,
        include_dirs: Sequence[str | Path] = (),
    ) -> None:
        found = load_program(source, name, macros=macros, include_dirs=include_dirs, exact_fma=exact_fma)
        kernel = load_ptx(found.ptx, exact_fma, single_step=True).kernels[found.kernel.name]
        self.program = replace(found, kernel=kernel)
        self._file = main_file(self.program)
        self.grid, self.block, checked = check_arguments(self.program, grid, block, args, shared_bytes)
        self._findings = Findings(kernel, self.grid, self.block)
        self._watch = _Watch(kernel)
        races = Races(self._findings, self.grid, self.block) if checks else None
        watching = Observers(self._findings, races, self._watch)
        options = Options(
            checks=checks,
            races=checks,
            exact_fma=exact_fma,
            truncating_mma=truncating_mma,
            max_steps=MAX_STEPS if max_steps is None else max_steps,
            shuffle_seed=shuffle_seed,
        )
        launch = Launch(kernel, self.grid, self.block, checked, shared_bytes, options=options, observers=watching)
        self._run = launch.prepare()
        self._threads = self._run.geometry.block_threads

    # Moving

    @property
    def done(self) -> bool:
        """All threads have ended, or a fault has ended the launch."""
        return bool(self._run.done)

    def step_instruction(self) -> Places:
        """Runs one PTX instruction, for all threads that stand at it; returns where()."""
        self._run.step()
        return self.where()

    def step(self) -> Places:
        """Runs until the threads that are furthest behind come to another source line; returns where()."""
        before = self._line()
        while not self.done and self._line() == before:
            self._run.step()
        return self.where()

    def run_to(self, line: Line) -> Places:
        """Runs until threads are about to enter ``line`` and none is behind them, or to the end; returns where().

        Threads that skip the lines before it arrive early and stand there, until the others have caught up.
        Raises ConfigError for a line without instructions.
        """
        lines = {self._place(site) for site in self.program.kernel.sites if site.line}
        if line not in lines:
            raise ConfigError(f"Line {line} has no instructions.", cure=f"Lines that have: {ranges(lines)}.")
        before = self._line()
        while not self.done:
            self._run.step()
            now = self._line()
            if now == line and before != line:
                break
            before = now
        return self.where()

    def finish(self) -> None:
        """Runs to the end."""
        while not self.done:
            self._run.step()

    # Looking

    def where(self) -> Places:
        """Source line -> the threads that are about to run it, or wait there, as (block, thread); empty at the end."""
        places: dict[Line, list[int]] = {}
        for site, lanes in self._standing():
            places.setdefault(self._place(site), []).extend(lanes.tolist())
        ordered = sorted(places.items(), key=lambda item: in_order(item[0]))
        return {line: [divmod(lane, self._threads) for lane in sorted(lanes)] for line, lanes in ordered}

    def registers(self, block: int = 0, thread: int = 0) -> dict[str, Scalar]:
        """PTX register -> its value in one thread, for all registers that have been written.

        Values are typed as the register is: bool for predicates, float for f32 and f64, else int (32 bits signed).
        """
        lane = self._lane(block, thread)
        return {name: self._read(name, np.array([lane]))[0].item() for name in self._watch.written}

    def warp_registers(self, block: int = 0, warp: int = 0) -> dict[str, npt.NDArray[Any]]:
        """PTX register -> its values in the 32 lanes of a warp."""
        first = self._lane(block, warp * LANES)
        return {name: self._read(name, first + np.arange(LANES)) for name in self._watch.written}

    def shared(self, block: int = 0, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A copy of a block's shared memory, static before dynamic; bytes that nobody has written are 0."""
        self._lane(block, 0)
        memory = self._run.shared
        start = block * memory.stride
        size = memory.size - memory.size % np.dtype(dtype).itemsize
        return np.array(memory.data[start : start + size].view(dtype))

    def listing(self) -> str:
        """The CUDA source, each line beside its PTX; > marks where threads stand, and how many."""
        return side_by_side(self.program, [(site, len(lanes)) for site, lanes in self._standing()])

    @property
    def findings(self) -> list[Finding]:
        """What the checks have found so far."""
        return self._findings.as_list()

    @property
    def counters(self) -> Counters:
        """What has been counted so far."""
        return self._watch

    @property
    def output(self) -> str:
        """What the kernel has printed so far."""
        return "".join(self._run.output)

    # How the machine keeps it

    def _standing(self) -> Iterator[tuple[Site, npt.NDArray[np.int64]]]:
        """(instruction, flat numbers of the threads that stand before it, or wait in it)."""
        run = self._run
        if run.done:
            return
        if run.position is not None:
            yield self._site(run.position), run.geometry.existing()
            return
        for group in run.schedule.groups.values():
            yield self._site(group.position), group.lanes
        for barrier, lanes in run.barriers.waiting():
            yield barrier.site, lanes

    def _site(self, position: int) -> Site:
        return self.program.kernel.blocks[position].instructions[0].site

    def _place(self, site: Site) -> Line:
        return site.line if site.file in (self._file, "") else f"{site.file}:{site.line}"

    def _line(self) -> Line:
        """The line that runs next: the first in the order of the program at which threads are ready."""
        run = self._run
        if run.done:
            return 0
        ready = [group.position for group in run.schedule.groups.values() if not group.waiting]
        position = run.position if run.position is not None else min(ready or run.schedule.groups, default=0)
        return self._place(self._site(position))

    def _lane(self, block: int, thread: int) -> int:
        """The flat number of a thread. Raises ConfigError for one that does not exist."""
        geometry = self._run.geometry
        if not (0 <= block < geometry.blocks and 0 <= thread < geometry.real_threads):
            cure = f"Blocks are 0 to {geometry.blocks - 1}, threads 0 to {geometry.real_threads - 1}."
            raise ConfigError(f"There is no thread {thread} in block {block}.", cure=cure)
        return int(block * self._threads + thread)

    def _read(self, name: str, lanes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """A register of some threads: of the register file, unless a group has them that went its own way."""
        run = self._run
        whole = np.broadcast_to(run.registers.read(name), (run.geometry.blocks, self._threads)).reshape(-1)
        values = np.array(whole[lanes])
        for group in run.schedule.groups.values() if run.position is None else ():
            mine = np.isin(lanes, group.lanes)
            if mine.any():
                everyone = np.broadcast_to(group.read(name), (1, len(group.lanes)))[0]
                values[mine] = everyone[np.searchsorted(group.lanes, lanes[mine])]
        return values.view(np.int32) if self.program.kernel.registers[name] in ("b32", "s32") else values
