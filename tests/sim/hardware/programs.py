"""Real programs: CUDA sources of well-known kinds, their inputs, their launches, and what must come out.

``run`` of a program is the same on both sides: buffers are made from the program's name, the launches follow one
another, and the buffers named in ``results`` are compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sim.hardware.store import checksum

SOURCES = Path(__file__).parent / "programs"
Buffers = dict[str, np.ndarray]
Argument = str | np.generic  # the name of a buffer, or a scalar of the parameter's type
Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel launch."""

    entry: str
    grid: Dimensions
    block: Dimensions
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Program:
    """``results``: buffer -> relative tolerance (0: equal bits). ``unordered``: results compared as sorted lists."""

    name: str
    make: Callable[[np.random.RandomState], Buffers]
    launches: tuple[Launch, ...]
    results: dict[str, float]
    expected: Callable[[Buffers], Buffers]  # NumPy's answer, computed from the inputs
    unordered: tuple[str, ...] = ()
    absolute: dict[str, float] = field(default_factory=dict)

    def buffers(self) -> Buffers:
        return self.make(np.random.RandomState(zlib.crc32(self.name.encode())))

    @property
    def source(self) -> Path:
        return SOURCES / f"{self.name}.cu"

    @property
    def ptx(self) -> Path:
        return SOURCES / "ptx" / f"{self.name}.ptx"


def record_checksum(program: Program) -> int:
    """Of everything that a record of the program depends on: its PTX and its inputs."""
    return checksum(program.ptx.read_bytes(), *(array.tobytes() for array in program.buffers().values()))


def floats(random: np.random.RandomState, *shape: int) -> np.ndarray:
    """float32 between -1 and 1, the same on every machine."""
    whole = random.randint(-(2**20), 2**20, shape)
    return (whole * 2.0**-20).astype(np.float32)


def integers(random: np.random.RandomState, low: int, high: int, *shape: int) -> np.ndarray:
    return random.randint(low, high, shape).astype(np.int32)


def close(program: Program, name: str, left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two contents of a result buffer count as equal."""
    if name in program.unordered:
        left, right = np.sort(left, axis=None), np.sort(right, axis=None)
    tolerance, absolute = program.results[name], program.absolute.get(name, 0.0)
    if not tolerance and not absolute:
        return left.tobytes() == right.tobytes()
    return bool(
        np.allclose(left.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=absolute, equal_nan=True)
    )
