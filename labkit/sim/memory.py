"""Where the addresses of a launch lead: global buffers, shared memory of each block, local memory of each thread.

Global addresses are those of the process, with a tag in the bits above that says which argument a pointer was made
for. So a pointer that runs out of its tensor is caught even where another one begins, be it another view of the same
storage; and pointers without a tag, which the host has written into tables, are good for every buffer.

Shared and local addresses are offsets from 0 in their own spaces. As generic addresses they lie in windows above all
global ones, so that a generic access finds its space by comparing.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.errors import PtxError
from labkit.sim.buffers import (
    ADDRESS_MASK,
    ALIGNMENT,
    TAG_SHIFT,
    Buffer,
    Out,
    Store,
    buffer_at,
    device_shift,
    extent,
)
from labkit.sim.program import Module, Variable

SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 2 << 60
ARGUMENT_TAGS = range(1, 2048)
NULL_PAGE = 1 << 16  # addresses below it are fields and elements of nothing
VARIABLE_TAGS = cycle(range(2048, 4096))


class Memory:
    """The buffers that kernels may touch, of one or of several devices: one address space."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []  # by address, without overlaps
        self._bases: list[int] = []
        self._next_tag = cycle(ARGUMENT_TAGS)
        self._second_tags: dict[int, int] = {}  # of buffers that came of several views -> the first tag of the buffer
        self.changes = 0  # grows whenever a kernel writes: as long as it stands still, waiting for a flag is in vain

    def add(self, argument: Any, name: str, device: int = 0) -> int:
        """Make a tensor, an array, or an Out of one accessible; returns a pointer to its first element."""
        tensor = argument.tensor if isinstance(argument, Out) else argument
        base, size = extent(tensor)
        new = buffer_at(base, size, name, device, tensor)
        new.tags = (0, next(self._next_tag))
        self.insert(new)
        holder = self.find(base) if size else None
        if isinstance(argument, Out) and holder is not None:
            holder.expect_writes(base, size)
        first: int = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data
        return first | (holder or new).tags[-1] << TAG_SHIFT

    def insert(self, new: Buffer) -> None:
        """Make a buffer accessible. Overlapping views of one storage become one, so that a byte has one shadow."""
        overlapping = [old for old in self.buffers if old.base < new.end and new.base < old.end]
        if len(overlapping) == 1 and overlapping[0].base <= new.base and new.end <= overlapping[0].end:
            return
        for old in overlapping:
            new = _merged(old, new)
            self.buffers.remove(old)
        self._second_tags |= dict.fromkeys(new.tags[2:], new.tags[1])
        if new.size:
            self.buffers.append(new)
            self.buffers.sort(key=lambda each: each.base)
        self._bases = [buffer.base for buffer in self.buffers]

    def find(self, address: int) -> Buffer | None:
        """The buffer that holds the byte at a pointer."""
        plain = address & ADDRESS_MASK
        place = bisect_right(self._bases, plain) - 1
        if place >= 0 and self.buffers[place].holds(address):
            return self.buffers[place]
        return None

    def find_all(self, addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each pointer the position in ``buffers`` of the one that holds it, or -1."""
        if not self.buffers:
            return np.full(addresses.shape, -1)
        plain, tags = addresses & ADDRESS_MASK, addresses >> TAG_SHIFT
        places = np.searchsorted(np.array(self._bases), plain, side="right") - 1
        ends = np.array([buffer.end for buffer in self.buffers])
        for second, first in self._second_tags.items():
            tags = np.where(tags == second, first, tags)
        own_tags = np.array([buffer.tags[1] for buffer in self.buffers])
        inside = (places >= 0) & (plain < ends[places]) & ((tags == 0) | (tags == own_tags[places]))
        return np.where(inside, places, -1)

    def nearest(self, address: int) -> str:
        """Words that say how a pointer which is in no buffer lies to the one that it was made for, or the closest."""
        plain, tag = address & ADDRESS_MASK, address >> TAG_SHIFT
        if plain < NULL_PAGE and not tag:
            return f"at address {plain:#x}, through a null pointer"
        candidates = [buffer for buffer in self.buffers if tag in buffer.tags[1:]] or self.buffers
        if not candidates:
            return "where there is no buffer at all"
        buffer = min(candidates, key=lambda each: max(each.base - plain, plain - each.end))
        if plain >= buffer.end:
            gap = f"{plain - buffer.end:,} bytes" if plain > buffer.end else "right"
            return f"{gap} behind the end of {buffer.name} ({buffer.size:,} bytes)"
        if plain < buffer.base:
            return f"{buffer.base - plain:,} bytes before the start of {buffer.name}"
        return f"across the end of {buffer.name} ({buffer.size:,} bytes)"


def _merged(old: Buffer, new: Buffer) -> Buffer:
    base, end = min(old.base, new.base), max(old.end, new.end)
    merged = buffer_at(base, end - base, old.name, old.device, (old.owner, new.owner))
    merged.tags = (*old.tags, *new.tags[1:])
    for part in (old, new):
        if part.shadow is not None:
            merged.expect_writes(base, 0)
            merged.shadow[part.unwritten(part.base, part.size) + part.base - merged.start] = 0
    return merged


class BlockMemory(Store):
    """Shared memory (one row per block) or local memory (one row per thread) of a launch: ``rows_of`` rows of bytes.

    While every block has written the same places, the shadow needs one row only; ``shadow_rows`` says how many it has.
    """

    def __init__(self, name: str, rows: int, size: int, tracked: bool) -> None:
        self.name = name
        self.count = rows
        self.size = size  # bytes that may be accessed
        self.stride = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        shadow = np.zeros(self.stride, np.uint8) if tracked and size else None
        if shadow is not None:
            shadow[size:] = 1  # padding, which nobody can reach
        self.dirty = False  # the shadow has changed since it was last looked through
        super().__init__(np.zeros(rows * self.stride, np.uint8), shadow)
        self.shadow_rows = 1

    def words_by_row(self, width: int, count: int) -> Any:
        """[rows, words per row], or [rows, groups per row, count] where count > 1."""
        if count == 1:
            return self.words(width).reshape(self.count, -1)
        return self.rows(width, count).reshape(self.count, -1, count)

    def split_shadow(self) -> None:
        """From now on blocks differ in what they have written."""
        if self.shadow is not None and self.shadow_rows == 1 and self.count > 1:
            self.shadow = np.tile(self.shadow, self.count)
            self.shadow_rows = self.count
            self._shadows.clear()

    def retire_shadow(self) -> None:
        """Stop tracking once everything has been written. Called at barriers, where that is likely to come true."""
        if self.dirty and self.shadow is not None:
            self.dirty = False
            if self.shadow.all():
                self.shadow = None


class Device:
    """A simulated GPU: its number and the module variables that live there from launch to launch."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._variables: dict[str, dict[str, Buffer]] = {}

    def variables(self, module: Module) -> dict[str, Buffer]:
        """The global and constant variables of a module, by name; made, with their initial values, at first use."""
        known = self._variables.get(module.ptx)
        if known is None:
            known = self._variables[module.ptx] = {
                name: _variable_buffer(variable, self.number) for name, variable in module.variables.items()
            }
            _point(known, module)
        return known

    def variable(self, module: Module, name: str, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """One variable as an array; writing into it changes what kernels see."""
        buffer = self.variables(module)[name]
        return buffer.owner[: buffer.size].view(dtype)

    def reset(self) -> None:
        """Forget all module variables, as unloading the modules would."""
        self._variables.clear()


def _point(buffers: dict[str, Buffer], module: Module) -> None:
    """Write the addresses with which variables start."""
    for name, variable in module.variables.items():
        for offset, target, distance in variable.pointers:
            if target not in buffers:
                raise PtxError(
                    f"The variable '{name}' holds the address of '{target}', which is no variable.",
                    cure="Call functions by name, in a switch: pointers to functions are not supported.",
                )
            pointer = np.array([buffers[target].pointer + distance], np.uint64)
            buffers[name].owner[offset : offset + pointer.nbytes] = pointer.view(np.uint8)


def _variable_buffer(variable: Variable, device: int) -> Buffer:
    room = np.zeros(variable.size + 2 * ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    data = room[skip : skip + max(variable.size, 1)]
    if variable.initial is not None:
        data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
    buffer = buffer_at(data.ctypes.data, variable.size, variable.name, device, data)
    buffer.constant = variable.space == "const"
    buffer.shift = device_shift(buffer.base)
    buffer.tags = (0, next(VARIABLE_TAGS))
    return buffer
