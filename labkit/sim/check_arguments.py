"""Arguments and sizes of a launch, held against the kernel's CUDA declaration and the V100's limits, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.sim.buffers import Out
from labkit.sim.program import Kernel
from labkit.sim.source import Program

Dimensions = tuple[int, int, int]


def check_arguments(
    program: Program, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], shared_bytes: int
) -> tuple[Dimensions, Dimensions]:
    """(grid, block) in three dimensions. Raises KernelArgumentError, which names the parameter at fault."""
    from labkit.device.geometry import check_block, check_shared, dimensions

    kernel = program.kernel
    checked = dimensions(kernel.name, "grid", grid), dimensions(kernel.name, "block", block)
    check_block(kernel.name, checked[1], kernel.max_threads)
    check_shared(kernel.name, kernel.shared_bytes, shared_bytes)
    _check_values(program, [_as_tensor(argument) for argument in args])
    return checked


def _check_values(program: Program, args: list[Any]) -> None:
    from labkit.device.signature import read_signature

    kernel: Kernel = program.kernel
    try:
        signature = read_signature(kernel.name, program.ptx, kernel.name, program.text)
    except KernelBuildError:
        return  # a struct among the parameters: its bytes are checked when they are packed
    if any(_is_tensor(argument) for argument in args) or len(args) != len(signature.parameters):
        signature.values(args)


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument.tensor if isinstance(argument, Out) else argument, "data_ptr")


def _as_tensor(argument: Any) -> Any:
    """NumPy arrays as torch tensors over the same memory, for whose types the declaration can be asked."""
    import torch

    if isinstance(argument, Out):
        return Out(_as_tensor(argument.tensor))
    if not isinstance(argument, np.ndarray):
        return argument
    if not argument.flags.writeable or not argument.dtype.isnative:
        problem = "a read-only array" if argument.dtype.isnative else f"an array of type {argument.dtype}"
        raise KernelArgumentError(f"Kernels cannot work on {problem}.", cure="Give a copy of it.")
    try:
        return torch.from_numpy(argument)
    except (TypeError, ValueError) as error:
        message = f"A NumPy array of type {argument.dtype} is no argument for a kernel: {error}."
        raise KernelArgumentError(message, cure="Give an array of plain numbers, without negative strides.") from None
