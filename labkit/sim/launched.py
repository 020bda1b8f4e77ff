"""One launch on its way: its threads, memory and registers, and the steps that take it forward."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.arguments import Parameters, pack
from labkit.sim.barriers import Barriers, combine, is_plain
from labkit.sim.buffers import Buffer, Out, extent
from labkit.sim.geometry import geometry_of
from labkit.sim.groups import Group, RegisterFile, live_registers, split
from labkit.sim.locate import Spans
from labkit.sim.memory import BlockMemory, Device, Memory
from labkit.sim.mma import Results
from labkit.sim.observed import Observed
from labkit.sim.options import LaunchResult
from labkit.sim.program import EXIT, Barrier, Block
from labkit.sim.schedule import Schedule
from labkit.sim.standstill import Standstill
from labkit.sim.threads import Threads

if TYPE_CHECKING:
    from labkit.sim.machine import Launch

Array = npt.NDArray[Any]
TURN = 256  # steps before another launch has its turn
VAIN_ROUNDS = 20_000  # of a loop that waits for a value while nothing changes, before it counts as endless


class StopLaunch(Exception):
    """Ends a launch from within a block of instructions (trap, assert); never leaves this module."""


class Run(Observed):
    """A launch that can be taken forward step by step.

    While all threads stand together, ``position`` is their next basic block and ``registers`` hold what they computed.
    After a divergence it is None, and ``schedule`` and ``barriers`` hold the groups.
    """

    def __init__(
        self, launch: Launch, grid: tuple[int, int, int], block: tuple[int, int, int], memory: Memory, device: Device
    ) -> None:
        geometry = geometry_of(grid, block)
        shared_bytes = launch.kernel.shared_bytes + launch.shared_bytes
        shared = BlockMemory("shared", geometry.blocks, shared_bytes, launch.options.checks)
        super().__init__(launch.kernel, geometry, shared, launch.observers)
        self.options = launch.options
        self.memory = memory
        self._prepare_memory(launch, device)
        self._prepare_threads()
        self.steps = 0  # basic blocks run
        self.clock = 0  # instructions run, each for many threads
        self.polled = False  # since the last branch back, somebody has looked for news
        self.spun = False  # all threads have gone round a loop looking for news
        self._polls: dict[int, tuple[int, int]] = {}  # by site: the range of addresses that it last looked at
        self._vain_rounds = 0  # of loops that looked for news since anything last changed
        self._changes_seen = 0
        self._standstill = Standstill(self)
        self._alone = True  # no other launch runs at the same time, which could change memory
        self.done = False
        self.finished = True
        self.output: list[str] = []
        self.recent_buffers: dict[int, Buffer] = {}  # by site
        self.spans = Spans()
        self.mma_results = Results()

    def _prepare_memory(self, launch: Launch, device: Device) -> None:
        kernel, checks = launch.kernel, self.options.checks
        self.parameters = Parameters(pack(kernel, list(launch.arguments), self.memory, device.number, checks))
        outputs = ((n, argument) for n, argument in enumerate(launch.arguments) if isinstance(argument, Out))
        self._outputs = {position: extent(argument.tensor) for position, argument in outputs}
        self.variables = device.variables(kernel.module)
        for buffer in self.variables.values():
            self.memory.insert(buffer)
        self.dynamic_bytes = launch.shared_bytes
        threads = self.geometry.blocks * self.geometry.block_threads
        self.local = BlockMemory("local", threads, kernel.local_bytes, checks)

    def _prepare_threads(self) -> None:
        geometry, kernel = self.geometry, self.kernel
        self.everyone = Threads(self, None)
        self.registers = RegisterFile(kernel, geometry.blocks, geometry.block_threads)
        self.schedule = Schedule(self, self.options.shuffle_seed)
        self.barriers = Barriers(self)
        self.alive = np.zeros(geometry.blocks * geometry.block_threads, bool)
        self.alive[geometry.existing()] = True
        self.alive_count = geometry.blocks * geometry.real_threads
        self.alive_per_block = np.full(geometry.blocks, geometry.real_threads)
        self.ended_after = np.full(self.alive.size, -1)  # last basic block of threads that have ended
        self.position: int | None = 0
        if geometry.real_threads != geometry.block_threads:
            self.position = None
            self.schedule.add(Group(self, geometry.existing(), 0))

    @cached_property
    def parameter_block(self) -> int:
        """Pointer to a copy of the kernel's parameters, which reads by computed addresses go to."""
        return self.memory.add(self.parameters.copy(), "the kernel's parameters")

    @cached_property
    def grid_barrier(self) -> int:
        """Pointer to where cooperative groups synchronise a grid: every launch is a cooperative one."""
        return self.memory.add(np.zeros(2, np.uint32), "the grid's barrier")

    @property
    def live(self) -> list[frozenset[str]]:
        """Registers that may still be read, at the start of each basic block."""
        if not self.kernel.live:
            self.kernel.live = live_registers(self.kernel)
        return self.kernel.live

    def poll(self, address: Array, site: int) -> None:
        """Somebody reads memory in a way that other threads may have changed it: volatile, or atomic."""
        self.polled = True
        span = self.spans.of(address)
        if self._polls.get(site) != (span.low, span.high):
            self._polls[site] = span.low, span.high
            self._vain_rounds = 0  # a loop that looks somewhere else each time is at work

    def alive_lanes(self) -> Array:
        """Flat numbers of the threads that have not ended."""
        return np.flatnonzero(self.alive)

    # Steps

    def finish(self) -> LaunchResult:
        """Run to the end."""
        with np.errstate(all="ignore"):
            while not self.done:
                self._step()
        return self.result()

    def advance(self) -> None:
        """Run on for a turn: until it has looked for news in vain, but not for long."""
        rounds = self.schedule.rounds
        self._alone = False
        with np.errstate(all="ignore"):
            for _ in range(TURN):
                if self.done or self.spun or self.schedule.rounds > rounds:
                    break
                self._step()
        self.spun = False

    def step(self) -> None:
        """Run one basic block."""
        if not self.done:
            with np.errstate(all="ignore"):
                self._step()

    def result(self) -> LaunchResult:
        """What has come of the launch so far."""
        return LaunchResult("".join(self.output), self.steps, self.clock, self.finished, self.observers)

    def _step(self) -> None:
        self.steps += 1
        try:
            if self.position is None:
                self._step_apart()
            else:
                self._step_together(self.kernel.blocks[self.position])
        except StopLaunch:
            self._end(finished=False)
        if self.steps >= self.options.max_steps and not self.done:
            self._endless(f"is still running after {self.steps:,} steps; the loop here seems to have no end")

    def _step_together(self, block: Block) -> None:
        registers = self.registers
        if self.counters is not None:
            self.counters.block(block, self.everyone)
        results = block.run(self.everyone, *[registers.read(name) for name in block.inputs])  # type: ignore[misc]
        for name, value in zip(block.outputs, results, strict=False):
            registers.replace(name, value)
        self.clock += len(block.instructions)
        if block.barrier is not None:
            self._barrier_together(block, block.barrier)
            return
        condition = results[-1]
        if condition is None:
            self._go(block, block.successors[0])
            return
        if self.counters is not None:
            self.counters.branch(self.everyone, condition, block.instructions[-1].site.index)
        number = int(np.count_nonzero(condition))
        if number in (0, condition.size):
            self._go(block, block.successors[0] if number else block.successors[1])
        else:
            self._part(block, condition)

    def _go(self, block: Block, position: int) -> None:
        if position == EXIT:
            self._end()
            return
        self.position = position
        if position <= block.index:
            self.spun |= self.polled
            self._came_round()

    def _part(self, block: Block, condition: Array) -> None:
        """Threads take different ways from here on."""
        self.registers.share()
        self.position = None
        taken = self.everyone.spread(condition)
        for chosen, position in ((taken, block.successors[0]), (~taken, block.successors[1])):
            group = Group(self, np.flatnonzero(chosen), position)
            group.last_block = block.index
            self.schedule.add(group)

    def _barrier_together(self, block: Block, barrier: Barrier) -> None:
        if barrier.kind == "arrive" or not is_plain(barrier):
            group = Group(self, self.geometry.existing(), block.index)
            self.registers.share()
            self.position = None
            self._continue(group, self.barriers.arrive(group, barrier, block.successors[0]))
            return
        self.passed_by_blocks(None)
        if barrier.predicate is not None and barrier.result is not None:
            votes = self.registers.read(barrier.predicate) ^ barrier.negated
            votes = np.broadcast_to(votes, (votes.shape[0], self.geometry.block_threads))
            yes = np.count_nonzero(votes, axis=1)[:, None]
            answer = combine(barrier.kind, yes, np.full_like(yes, self.geometry.block_threads))
            self.registers.replace(barrier.result, answer)
        self._go(block, block.successors[0])

    def _step_apart(self) -> None:
        group = self.schedule.next() or self._nobody_ready()
        if group is None:
            return
        block = self.kernel.blocks[group.position]
        if self.counters is not None:
            self.counters.block(block, group.threads)
        results = block.run(group.threads, *[group.read(name) for name in block.inputs])  # type: ignore[misc]
        for name, value in zip(block.outputs, results, strict=False):
            group.write(name, value)
        self.clock += len(block.instructions)
        if len(block.instructions) > 1 or block.successors != (EXIT,):
            group.last_block = block.index
        if block.barrier is not None:
            parts = self.barriers.arrive(group, block.barrier, block.successors[0])
        elif results[-1] is None:
            group.position = block.successors[0]
            parts = [group]
        else:
            if self.counters is not None:
                self.counters.branch(group.threads, results[-1], block.instructions[-1].site.index)
            parts = split(group, results[-1], block.successors)
        for part in parts:
            if part.position != EXIT and part.position <= block.index:
                self.schedule.went_round(part, self.polled)
        self._continue(group, parts)
        if any(part.position <= block.index for part in parts):
            self._came_round()

    def _continue(self, group: Group, parts: list[Group]) -> None:
        for part in parts:
            self.schedule.add(part)
        if self.alive_count == 0:
            self._end()
        elif len(self.schedule.groups) == 1:
            self._perhaps_together()

    def _perhaps_together(self) -> None:
        """When all threads of the launch stand at one place again, they run as one."""
        ((position, group),) = self.schedule.groups.items()
        if len(group.lanes) == self.alive.size:
            group.settle()
            self.registers.share()
            self.schedule.groups.clear()
            self.position = position

    def _nobody_ready(self) -> Group | None:
        """Lanes that wait for others go on without them; threads that wait at barriers are stuck for good."""
        group = self.schedule.force()
        if group is not None:
            return group
        self._report_waiting()
        self._end(finished=False)
        return None

    def _report_waiting(self) -> None:
        for barrier, lanes in self.barriers.waiting():
            text = "waits at a barrier that the other threads never reach"
            self.report_flat("deadlock", barrier.site.index, text, lanes)

    # Ends

    def end_threads(self, group: Group) -> None:
        """These threads have reached the end of the kernel."""
        self.alive[group.lanes] = False
        self.ended_after[group.lanes] = group.last_block
        self.alive_count -= len(group.lanes)
        self.alive_per_block -= np.bincount(group.threads.block_of[0], minlength=self.geometry.blocks)
        for released in self.barriers.release():
            self.schedule.add(released)

    def stop(self, kind: str, site: int, text: str, threads: Threads) -> None:
        """Report, and end the launch at once."""
        self.report_flat(kind, site, text, threads.flat.reshape(-1))
        raise StopLaunch

    def _came_round(self) -> None:
        """Threads have taken a branch back. If they wait for news and nothing changes any more, nothing ever will."""
        if not self.polled:
            return
        self.polled = False
        if self.memory.changes != self._changes_seen:
            self._changes_seen, self._vain_rounds = self.memory.changes, 0
        self._vain_rounds += 1
        proved = self._alone and self._standstill.proved(self._vain_rounds)
        if (proved or self._vain_rounds > VAIN_ROUNDS) and not self.done:
            self._endless("waits in this loop for a value that nobody writes any more")

    def _endless(self, text: str) -> None:
        groups = self.schedule.groups if self.position is None else {}
        position = min(groups, default=self.position or 0)
        site = self.kernel.blocks[position].instructions[0].site.index
        self._report_waiting()
        self._end(finished=False)
        lanes = groups[position].lanes if groups else self.alive_lanes()
        self.report_flat("endless", site, text, lanes)

    def _end(self, finished: bool = True) -> None:
        self.done, self.finished, self.position = True, finished, None
        if self.races is not None:
            self.races.finish()
        if finished and self.options.checks:
            self._check_outputs()

    def _check_outputs(self) -> None:
        for position, (base, size) in self._outputs.items():
            buffer = self.memory.find(base)
            unwritten: Any = () if buffer is None else buffer.unwritten(base, size)
            if len(unwritten):
                text = f"{len(unwritten):,} of {size:,} bytes of argument {position} were never written"
                place = f", the first at byte {int(unwritten[0]):,}"
                self._report("unwritten-output", None, text + place, address=int(unwritten[0]) + base)
