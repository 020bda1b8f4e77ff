"""A CUDA kernel as Python sees it: named by operation, rung, entry and macros, launched where its tensors lie.

    normalise = Kernel("rmsnorm", "3_vector", "rmsnorm", {"HIDDEN": 5120, ...})
    normalise.launch(rows, 256, [x, weight, Out(y), 1e-6])

Tensors on a GPU: the executor ``cuda``, on torch's current stream. Tensors on the CPU: the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from labkit.device.carried import Image, macro_words
from labkit.device.compile import compiler_options
from labkit.device.geometry import Dimensions, Size, check_block, check_shared, dimensions
from labkit.device.image import find_image
from labkit.device.ladder import Macros
from labkit.device.signature import Signature, read_signature
from labkit.device.sources import Source, read_rung
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.sim.buffers import Out

__all__ = ["Facts", "Kernel", "Launch", "Out"]


class Facts:
    """What is known of a compiled kernel, found out once for each state of its source: every launch asks."""

    def __init__(self, source: Source, image: Image, signature: Signature, static_shared_bytes: int) -> None:
        self.source = source
        self.image = image
        self.signature = signature
        self.static_shared_bytes = static_shared_bytes
        self.handles: dict[int, int] = {}  # of the loaded kernel, by GPU


class Launch(NamedTuple):
    """One checked launch: everything that an executor needs. ``values``: a number for each parameter."""

    kernel: Kernel
    facts: Facts
    grid: Dimensions
    block: Dimensions
    shared_bytes: int  # dynamic
    values: Sequence[int | float]
    arguments: Sequence[Any]  # as given; they keep the memory alive
    device: torch.device


@dataclass(frozen=True)
class Kernel:
    """``entry`` of ``cuda/<op>/<rung>.cu``, compiled with ``macros``.

    Cheap to make: compiled when first launched, and again when its source or a header has changed since. What ``bind``
    gave keeps running the code that it was bound to. Kernels are equal when the compiler sees the same: 256 and "256"
    are, 256 and 256.0 are not. Raises KernelBuildError for names and macros that are none.
    """

    op: str
    rung: str
    entry: str
    macros: Macros = field(default_factory=dict, compare=False)
    _words: tuple[tuple[str, str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for what, name in (("operation", self.op), ("rung", self.rung), ("entry", self.entry)):
            if not isinstance(name, str):
                raise KernelBuildError(f"The {what} of a kernel is {name!r}.", cure="Give its name as a text.")
        compiler_options("sm_70", self.macros)
        object.__setattr__(self, "macros", MappingProxyType(dict(self.macros)))
        object.__setattr__(self, "_words", tuple(macro_words(self.macros).items()))

    def __str__(self) -> str:
        return f"{self.op}/{self.rung}:{self.entry}"

    @property
    def image(self) -> Image:
        """The compiled rung. Raises KernelBuildError."""
        return self.facts.image

    @property
    def facts(self) -> Facts:
        """What it takes, and where it is loaded; of its source as it is now. Raises KernelBuildError."""
        return _facts(self, read_rung(self.op, self.rung).digest)

    @property
    def signature(self) -> Signature:
        """What the kernel takes. Raises KernelBuildError."""
        return self.facts.signature

    def launch(self, grid: Size, block: Size, arguments: Sequence[Any], shared_bytes: int = 0) -> None:
        """Check everything and run once.

        ``arguments``: torch tensors, all contiguous and on one device; Python numbers, converted to the parameter's
        type; None for a null pointer; ``Out(tensor)`` for a tensor that the kernel writes completely.
        ``shared_bytes``: dynamic shared memory of a block. Raises KernelArgumentError before anything runs,
        KernelBuildError if the kernel cannot be compiled, KernelLaunchError if it fails.
        """
        launch = self.prepare(grid, block, arguments, shared_bytes)
        _executor(launch.device.type, launch.facts.signature.kernel).launch(launch)

    def bind(self, grid: Size, block: Size, arguments: Sequence[Any], shared_bytes: int = 0) -> Callable[[], None]:
        """Check everything once; every call of the result runs the kernel on the same memory. Raises as ``launch``."""
        launch = self.prepare(grid, block, arguments, shared_bytes)
        return _executor(launch.device.type, launch.facts.signature.kernel).bind(launch)

    def prepare(self, grid: Size, block: Size, arguments: Sequence[Any], shared_bytes: int = 0) -> Launch:
        """The checks of ``launch`` alone."""
        facts = self.facts
        signature = facts.signature
        name = signature.kernel
        checked_grid, checked_block = dimensions(name, "grid", grid), dimensions(name, "block", block)
        check_block(name, checked_block, signature.max_threads)
        check_shared(name, facts.static_shared_bytes, shared_bytes)
        if not isinstance(arguments, list | tuple):
            raise KernelArgumentError(f"{name}: the arguments are {arguments!r}.", cure="Give a list of them.")
        values, device = signature.values(arguments)
        return Launch(self, facts, checked_grid, checked_block, shared_bytes, values, arguments, device)


@cache
def _facts(kernel: Kernel, source_digest: str) -> Facts:
    source = read_rung(kernel.op, kernel.rung)
    image = find_image(kernel.op, kernel.rung, kernel.macros, source)
    signature = read_signature(str(kernel), image.ptx, kernel.entry, source.text)
    return Facts(source, image, signature, image.resources["sm_70"][kernel.entry].shared_bytes)


@cache
def _executor(device_type: str, kernel: str) -> Any:
    """The module that runs a launch. Loaded on first use: one needs cupy, the other compiles on NumPy."""
    if device_type == "cuda":
        from labkit.device import cuda

        return cuda
    if device_type == "cpu":
        from labkit.device import sim_executor

        return sim_executor
    message = f"{kernel}: kernels run on NVIDIA GPUs and on the simulator, not on {device_type}."
    raise KernelArgumentError(message, cure="Move the tensors with .cpu() or .cuda().")
