"""Threads that have diverged: groups of them, each at its own place in the program.

All threads of a launch share one register file of lazily shaped arrays. While a group runs, it reads from there once
and keeps what it computes to itself; what is still needed goes back when it meets other threads again. So a group that
stays apart for long, such as the threads left after an early return, pays for its selection only once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from labkit.sim.program import EXIT, Block, Kernel
from labkit.sim.threads import Threads
from labkit.sim.types import register_dtype

if TYPE_CHECKING:
    from labkit.sim.machine import Run

Array = npt.NDArray[Any]


class RegisterFile:
    """Registers of all threads of a launch, by name."""

    def __init__(self, kernel: Kernel, blocks: int, block_threads: int) -> None:
        self._types = kernel.registers
        self._shape = (blocks, block_threads)
        self._values: dict[str, Array] = {}
        self._own: set[str] = set()  # arrays that nobody else holds, which may be written in place

    def read(self, name: str) -> Array:
        """A register of all threads; zero where nothing has been written."""
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = np.zeros((1, 1), register_dtype(self._types[name]))
        return value

    def replace(self, name: str, value: Array) -> None:
        """A new value for all threads."""
        self._values[name] = value

    def share(self) -> None:
        """From now on generated code sees these arrays, and may keep them under several names."""
        self._own.clear()

    def write(self, name: str, lanes: Array, value: Array) -> None:
        """New values for some threads: ``value`` is (1, n) or (1, 1)."""
        if name not in self._own:
            self._values[name] = np.array(np.broadcast_to(self.read(name), self._shape), order="C")
            self._own.add(name)
        self._values[name].reshape(-1)[lanes] = value[0]


class Group:
    """Threads at the same place: ``position`` is the basic block that they run next."""

    def __init__(self, run: Run, lanes: Array, position: int) -> None:
        self.run = run
        self.lanes = lanes
        self.position = position
        self.threads = Threads(run, lanes)
        self.waiting = False  # for lanes of its mask, when last looked at
        self.spent = 0  # patience used up in loops, see labkit.sim.schedule
        self.last_block = 0  # the last basic block run that did more than end the thread
        self._values: dict[str, Array] = {}
        self._changed: set[str] = set()

    def read(self, name: str) -> Array:
        """A register of these threads."""
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = self.threads.gather(self.run.registers.read(name))
        return value

    def write(self, name: str, value: Array) -> None:
        """A new value of a register of these threads."""
        self._values[name] = value
        self._changed.add(name)

    def part(self, positions: Array, position: int) -> Group:
        """Some of the threads, as a group of their own that continues at ``position``."""
        part = Group(self.run, self.lanes[positions], position)
        part.spent, part.last_block = self.spent, self.last_block
        if position != EXIT:
            for name in self._changed & self.run.live[position]:
                value = self._values[name]
                part.write(name, value if value.size == 1 else value[0].take(positions)[None])
        return part

    def settle(self) -> None:
        """Put what will still be read back into the register file."""
        for name in self._changed & self.run.live[self.position]:
            self.run.registers.write(name, self.lanes, self._values[name])
        self._values.clear()
        self._changed.clear()

    def merge(self, other: Group) -> Group:
        """Both groups as one, where they stand at the same position."""
        self.settle()
        other.settle()
        lanes = np.concatenate((self.lanes, other.lanes))
        lanes.sort(kind="stable")
        merged = Group(self.run, lanes, self.position)
        merged.spent = max(self.spent, other.spent)
        merged.last_block = max(self.last_block, other.last_block)
        return merged


def split(group: Group, condition: Array, successors: tuple[int, ...]) -> list[Group]:
    """The groups in which threads leave a basic block; ``condition`` is true where successors[0] is taken."""
    taken = np.broadcast_to(condition, group.threads.shape)[0]
    number = int(np.count_nonzero(taken))
    if number in (0, len(taken)):
        group.position = successors[0] if number else successors[1]
        return [group]
    return [group.part(np.flatnonzero(taken), successors[0]), group.part(np.flatnonzero(~taken), successors[1])]


def live_registers(kernel: Kernel) -> list[frozenset[str]]:
    """For each basic block, the registers whose values at its start may still be read."""
    uses = [frozenset(block.inputs) | (_barrier_operands(block) - set(block.outputs)) for block in kernel.blocks]
    live = list(uses)
    changed = True
    while changed:
        changed = False
        for index in range(len(kernel.blocks) - 1, -1, -1):
            block = kernel.blocks[index]
            after: frozenset[str] = frozenset().union(*(live[next_] for next_ in block.successors if next_ != EXIT))
            needed = uses[index] | (after - frozenset(block.outputs))
            if needed != live[index]:
                live[index], changed = needed, True
    return live


def _barrier_operands(block: Block) -> frozenset[str]:
    if block.barrier is None:
        return frozenset()
    operands = (block.barrier.number, block.barrier.threads, block.barrier.predicate)
    return frozenset(operand for operand in operands if isinstance(operand, str))
