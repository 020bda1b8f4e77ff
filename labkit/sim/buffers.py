"""Memory as the simulator sees it: raw bytes viewed at every access width, with a shadow that knows what was written.

Global memory is the process's own. Every tensor or array given to a kernel becomes a `Buffer` at its real address, so
kernels read and write it in place and pointers stored inside tensors mean what they say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.errors import KernelArgumentError

Bytes = npt.NDArray[np.uint8]
WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
ALIGNMENT = 16  # bytes of the widest access
TAG_SHIFT = 48  # processes have 47 bits of addresses; above them, pointers carry a tag, see labkit.sim.memory
ADDRESS_MASK = (1 << TAG_SHIFT) - 1
WRITTEN = {width: WORD[width](int.from_bytes(b"\x01" * width, "little")) for width in WORD}  # a shadow's "all there"


def keep_freed_memory() -> None:
    """Let the C library reuse freed arrays of up to 31 MiB instead of handing them back to the system each time.

    Fresh pages cost more than the arithmetic on them: large launches run up to four times as fast. glibc raises its
    limits to the size of the largest block that it has seen freed; elsewhere this does nothing.
    """
    np.empty(31 << 20, np.uint8)


class Store:
    """A range of bytes with views of 1, 2, 4, 8 bytes and of rows of 2 or 4 of them.

    ``data`` starts at an address that is a multiple of 16 and holds a multiple of 16 bytes.
    ``shadow`` has one byte per byte: 1 where something was written; None where all of it counts as written.
    """

    def __init__(self, data: Bytes, shadow: Any = None) -> None:
        self.data = data
        self.shadow = shadow
        self._words: dict[int, Any] = {}
        self._rows: dict[tuple[int, int], Any] = {}
        self._shadows: dict[int, Any] = {}

    def words(self, width: int) -> Any:
        """All bytes as unsigned integers of ``width`` bytes."""
        view = self._words.get(width)
        if view is None:
            view = self._words[width] = self.data.view(WORD[width])
        return view

    def rows(self, width: int, count: int) -> Any:
        """All bytes as rows of ``count`` unsigned integers of ``width`` bytes."""
        view = self._rows.get((width, count))
        if view is None:
            view = self._rows[width, count] = self.words(width).reshape(-1, count)
        return view

    def shadow_words(self, width: int) -> Any:
        """The shadow as integers; equal to WRITTEN[width] where every byte was written."""
        view = self._shadows.get(width)
        if view is None:
            view = self._shadows[width] = self.shadow.view(WORD[width])
        return view


@dataclass(frozen=True)
class Out:
    """A tensor that the kernel must write completely: its bytes count as uninitialized when the launch starts."""

    tensor: Any


class Buffer(Store):
    """A piece of global memory: ``size`` bytes from address ``base`` on."""

    def __init__(self, base: int, size: int, name: str, device: int, data: Bytes, start: int, owner: Any) -> None:
        super().__init__(data)
        self.base = base
        self.end = base + size
        self.size = size
        self.name = name
        self.device = device
        self.start = start  # address of data[0]: base rounded down to a multiple of 16
        self.owner = owner  # keeps the memory alive
        self.shift = device_shift(storage_address(owner, base))
        self.constant = False  # a __constant__ variable
        self.tags: tuple[int, ...] = (0,)  # what pointers made for it carry, see labkit.sim.memory; 0: none

    @property
    def pointer(self) -> int:
        """A pointer to its first byte, as kernels see it."""
        return self.base | self.tags[-1] << TAG_SHIFT

    def holds(self, address: int) -> bool:
        """Whether the byte at a pointer is part of it; pointers made for other allocations never are."""
        return self.base <= address & ADDRESS_MASK < self.end and address >> TAG_SHIFT in self.tags

    def expect_writes(self, base: int, size: int) -> None:
        """Count these bytes as uninitialized from now on."""
        if self.shadow is None:
            self.shadow = np.ones(self.data.size, np.uint8)
        self.shadow[base - self.start : base - self.start + size] = 0

    def unwritten(self, base: int, size: int) -> npt.NDArray[np.int64]:
        """Offsets from ``base`` of the bytes among these that nobody has written."""
        if self.shadow is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.shadow[base - self.start : base - self.start + size] == 0)


def device_shift(storage: int) -> int:
    """What must be added to addresses of a storage to make them those of a GPU, where each begins at a multiple of 512.

    NumPy aligns arrays to 16 bytes only, which would cost sectors that no GPU moves. Different storages stay apart.
    """
    return (storage << 9) - storage


def storage_address(owner: Any, otherwise: int) -> int:
    """Where the allocation begins that a tensor or array is a view of."""
    if isinstance(owner, tuple):  # overlapping views: of one allocation
        return storage_address(owner[0], otherwise)
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if hasattr(owner, "untyped_storage"):
        return owner.untyped_storage().data_ptr()
    return owner.ctypes.data if isinstance(owner, np.ndarray) else otherwise


class _RawMemory:
    """Lets NumPy look at memory that another library owns."""

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def buffer_at(base: int, size: int, name: str, device: int, owner: Any) -> Buffer:
    """A Buffer over existing memory.

    The views reach to the 16-byte boundaries around it. Those few bytes lie in the same page and are never touched:
    every access is tested against ``base`` and ``end`` first.
    """
    start = base & -ALIGNMENT
    length = -(-(base + size - start) // ALIGNMENT) * ALIGNMENT
    return Buffer(base, size, name, device, np.asarray(_RawMemory(start, length, owner)), start, owner)


def extent(argument: Any) -> tuple[int, int]:
    """(address, bytes) that a torch tensor or NumPy array spans, from its first to its last element."""
    if hasattr(argument, "data_ptr"):
        if argument.device.type != "cpu":
            raise KernelArgumentError(
                f"The simulator reads CPU memory; a tensor lies on {argument.device}.", cure="Move it with .cpu()."
            )
        size, strides = tuple(argument.shape), [stride * argument.element_size() for stride in argument.stride()]
        return argument.data_ptr(), _span(size, strides, argument.element_size())
    steps = list(zip(argument.shape, argument.strides, strict=True))
    low = sum((length - 1) * stride for length, stride in steps if stride < 0)
    return argument.ctypes.data + low, _span(argument.shape, [abs(stride) for _, stride in steps], argument.itemsize)


def _span(shape: tuple[int, ...], strides: list[int], item: int) -> int:
    if 0 in shape:
        return 0
    return item + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def is_array(argument: Any) -> bool:
    """True for what can become a Buffer: torch tensors and NumPy arrays."""
    return hasattr(argument, "data_ptr") or (isinstance(argument, np.ndarray) and argument.ndim > 0)
