"""The threads that run a block of instructions together, and what those instructions ask of them.

Register arrays have two dimensions. With all threads of a launch: (blocks, threads of a block), where an axis along
which nothing changes has length 1; so address arithmetic on block or thread numbers costs next to nothing. With a
selection of n threads: (1, n) or (1, 1), in the order of their flat numbers.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.sim import access, atomics, mma, printf, warp
from labkit.sim.geometry import WARP, Array, Lanes, constant
from labkit.sim.memory import LOCAL_WINDOW, SHARED_WINDOW

if TYPE_CHECKING:
    from labkit.sim.machine import Run


class Threads:
    """Threads that run the same block of instructions at the same time: all of a launch, or a selection.

    Generated code gets it as its first argument and calls the methods below; special registers are attributes, gathered
    at first use. ``lanes`` holds the flat numbers (block * block_threads + thread) of a selection, sorted.
    """

    def __init__(self, run: Run, lanes: Lanes | None) -> None:
        geometry = run.geometry
        self.run = run
        self.lanes = lanes
        self.whole = lanes is None
        self.blocks = geometry.blocks
        self.block_threads = geometry.block_threads
        self.warps_per_block = geometry.warps_per_block
        self.count = geometry.blocks * geometry.block_threads if lanes is None else len(lanes)
        self.shape = (geometry.blocks, geometry.block_threads) if lanes is None else (1, len(lanes))

    def __getattr__(self, name: str) -> Array:
        """A special register, such as tid_x."""
        whole = self.run.geometry.special.get(name)
        if whole is None:
            raise AttributeError(name)
        value = whole if self.lanes is None else self.gather(whole)
        setattr(self, name, value)
        return value

    # Who they are

    @cached_property
    def flat(self) -> Array:
        """Flat thread numbers, in the shape of a register that differs everywhere."""
        if self.lanes is not None:
            return self.lanes[None]
        return np.arange(self.count).reshape(self.shape)

    @cached_property
    def block_of(self) -> Array:
        """The block of each thread: (blocks, 1) for the whole launch, (1, n) for a selection."""
        return np.arange(self.blocks)[:, None] if self.lanes is None else (self.lanes // self.block_threads)[None]

    @cached_property
    def thread_of(self) -> Array:
        """The number of each thread in its block: (1, block_threads) or (1, n)."""
        return np.arange(self.block_threads)[None] if self.lanes is None else (self.lanes % self.block_threads)[None]

    @cached_property
    def warp_of(self) -> Lanes:
        """Flat warp number of each thread of a selection."""
        return self.flat.reshape(-1) // WARP

    @cached_property
    def complete_warps(self) -> bool:
        """True where every warp takes part with all 32 lanes, or not at all."""
        if self.lanes is None:
            return True
        if len(self.lanes) % WARP:
            return False
        first = self.lanes[::WARP]
        return bool(np.all(first % WARP == 0) and np.all(self.lanes[WARP - 1 :: WARP] - first == WARP - 1))

    def gather(self, whole: Array) -> Array:
        """A selection's values of a register of the whole launch."""
        if whole.size == 1:
            return whole
        if whole.shape[0] == 1:
            return whole[0].take(self.thread_of)
        if whole.shape[1] == 1:
            return whole[:, 0].take(self.block_of)
        return whole.reshape(-1).take(self.flat)

    def part(self, positions: Lanes) -> Threads:
        """The threads at these positions of ``flat`` (read row by row)."""
        return Threads(self.run, positions if self.lanes is None else self.lanes[positions])

    def spread(self, value: Array) -> Array:
        """A register as one value per thread, in a row."""
        return (value if value.shape == self.shape else np.broadcast_to(value, self.shape)).reshape(-1)

    # Parameters, addresses, clocks

    def parameter(self, offset: int, width: int) -> Array:
        """``width`` bytes of the parameter block as an unsigned integer."""
        return self.run.parameters.read(offset, width)

    def parameter_address(self, offset: int) -> Array:
        """The address of a place in the parameter block, for those who compute with it."""
        return constant(self.run.parameter_block + offset, np.uint64)

    def variable_address(self, name: str) -> Array:
        """The address of a global or constant variable of the module."""
        return constant(self.run.variables[name].pointer, np.uint64)

    def environment(self, number: int) -> Array:
        """A register that the driver fills: 1 and 2 hold the address, upper half first, of where the grid meets."""
        place = self.run.grid_barrier if number in (1, 2) else 0
        return constant(place >> 32 if number == 1 else place & 0xFFFFFFFF, np.uint32)

    def cvta(self, space: str, address: Array) -> Array:
        """The generic address of a shared or local one."""
        window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
        return address.astype(np.uint64) + np.uint64(window) if window else address

    def cvta_to(self, space: str, address: Array) -> Array:
        """The shared or local address of a generic one."""
        window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
        return address - np.uint64(window) if window else address

    def is_space(self, space: str, address: Array) -> Array:
        """Whether a generic address lies in a space (isspacep)."""
        shared, local = address >> np.uint64(60) == 1, address >> np.uint64(60) == 2
        answers = {"shared": shared, "local": local, "global": ~(shared | local)}
        return answers.get(space, np.zeros_like(shared))

    @property
    def dynamic_smem_size(self) -> Array:
        """Bytes of dynamic shared memory."""
        return constant(self.run.dynamic_bytes)

    @property
    def total_smem_size(self) -> Array:
        """Bytes of shared memory of a block in all."""
        return constant(self.run.shared.size)

    def clock(self, bits: int) -> Array:
        """A counter that grows with every block of instructions run; no model of the V100's time."""
        return constant(self.run.clock & ((1 << bits) - 1), np.uint32 if bits == 32 else np.uint64)

    def globaltimer(self) -> Array:
        """The clock in nanoseconds."""
        return constant(int(self.run.clock / self.run.options.clock_rate), np.uint64)

    # Memory

    def load(
        self, space: str, address: Array, offset: int, width: int, count: int, site: int, volatile: bool = False
    ) -> list[Array]:
        """``count`` arrays of ``width``-byte unsigned integers from ``address + offset``."""
        return access.load(self, space, address, offset, width, count, site, volatile)

    def store(
        self,
        space: str,
        address: Array,
        offset: int,
        width: int,
        count: int,
        site: int,
        volatile: bool,
        values: list[Array],
    ) -> None:
        """Write ``count`` unsigned integers of ``width`` bytes; where addresses meet, the last thread wins."""
        access.store(self, space, address, offset, width, count, site, volatile, values)

    def atomic(
        self,
        space: str,
        op: str,
        type: str,
        address: Array,
        offset: int,
        site: int,
        wanted: bool,
        operands: list[Array],
        semantics: str = "relaxed",
        scope: str = "gpu",
    ) -> Array | None:
        """One atomic operation per thread, in the order of the threads; the old values if wanted."""
        return atomics.atomic(self, space, op, type, address, offset, site, wanted, operands, semantics, scope)

    def fence(self, scope: str, site: int) -> None:
        """Memory fence; memory here is always in order, so only the race check listens."""
        if self.run.races is not None:
            self.run.races.fence(self, scope)

    # Warps

    def shuffle(
        self, mode: str, value: Array, lane: Array, clamp: Array, mask: Array, site: int, wants_predicate: bool
    ) -> tuple[Array, Array | None]:
        """shfl.sync: (value of the source lane, whether that lane was in range)."""
        return warp.shuffle(self, mode, value, lane, clamp, mask, site, wants_predicate)

    def vote(self, mode: str, predicate: Array, mask: Array, site: int) -> Array:
        """vote.sync: all, any, uni (bool) or ballot (uint32)."""
        return warp.vote(self, mode, predicate, mask, site)

    def match(self, mode: str, value: Array, mask: Array, site: int) -> tuple[Array, Array]:
        """match.sync: (lanes with the same value, whether all have it)."""
        return warp.match(self, mode, value, mask, site)

    def activemask(self, site: int) -> Array:
        """The lanes of the warp that run together at this moment."""
        return warp.active_mask(self)

    def sync_warp(self, mask: Array, site: int) -> None:
        """bar.warp.sync: the machine has waited already; memory is ordered between the lanes of the mask."""
        warp.check_members(self, mask, site)
        if self.run.races is not None:
            self.run.races.sync_warp(self, mask)

    def mma(
        self, layout_a: str, layout_b: str, d_type: str, c_type: str, tiles: list[Any], site_list: list[int]
    ) -> list[list[Array]]:
        """A run of independent mma.sync.m8n8k4: one list of result registers per tile."""
        return mma.multiply(self, layout_a, layout_b, d_type, c_type, tiles, site_list)

    # The outside

    def nanosleep(self, site: int) -> None:
        """Lets other threads go first."""
        self.run.polled = True  # whoever sleeps waits for something

    def trap(self, site: int) -> None:
        """Ends the launch with a finding."""
        self.run.stop("trap", site, "executes __trap(), which ends the launch", self)

    def print(self, format_address: Array, arguments_address: Array, site: int) -> None:
        """printf, thread by thread."""
        printf.print_all(self, format_address, arguments_address, site)

    def assert_fail(
        self, message_address: Array, file_address: Array, line: Array, function_address: Array, site: int
    ) -> None:
        """A failed assert() ends the launch with a finding."""
        first = self.part(np.zeros(1, np.int64))
        message = printf.text_at(first, message_address)
        function = printf.text_at(first, function_address)
        self.run.stop("assert", site, f"fails the assertion {message} in {function}", self)
