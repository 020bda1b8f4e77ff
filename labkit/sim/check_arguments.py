"""Arguments and sizes of a launch, held against the kernel's CUDA declaration and the V100's limits, before it runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from labkit.errors import KernelArgumentError
from labkit.sim.buffers import Out, is_array
from labkit.sim.machine import check_shape
from labkit.sim.program import Variable
from labkit.sim.source import Program, registers_of
from labkit.sim.symbols import plain_name

if TYPE_CHECKING:
    from labkit.device.parameter import Parameter

Dimensions = tuple[int, int, int]
ALWAYS_FIT = 256  # threads of a block, with as many registers as a thread can have
HALVES = {"half": torch.float16, "__half": torch.float16, "__nv_bfloat16": torch.bfloat16}  # structs to the compiler


def check_arguments(
    program: Program, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], shared_bytes: int
) -> tuple[Dimensions, Dimensions, list[Any]]:
    """(grid, block) in three dimensions, and the arguments, numbers as their parameters take them.

    Raises KernelArgumentError, which names the parameter at fault; KernelLaunchError for a launch beyond the V100's
    limits, or the simulator's.
    """
    from labkit.device.geometry import check_block, check_shared, dimensions

    kernel = program.kernel
    name = plain_name(kernel.name)
    checked = dimensions(name, "grid", grid), dimensions(name, "block", block)
    check_block(name, checked[1], kernel.max_threads)
    check_shared(name, kernel.shared_bytes, shared_bytes)
    check_shape(kernel, *checked, shared_bytes)
    _check_registers(program, name, checked[1])
    return *checked, _checked_values(program, name, args)


def _check_registers(program: Program, name: str, block: Dimensions) -> None:
    """A launch of more threads than there are registers for fails on a GPU. Launch bounds keep the compiler from it."""
    from labkit.device.occupancy import v100_occupancy

    threads = block[0] * block[1] * block[2]
    if threads <= ALWAYS_FIT or program.kernel.max_threads is not None or not program.text:
        return
    registers = registers_of(program)
    if not v100_occupancy(threads, registers, 0).blocks:
        message = f"{name}: a block of {threads} threads with {registers} registers each is more than a V100 has."
        raise KernelArgumentError(message, cure=f"Launch smaller blocks, or add __launch_bounds__({threads}).")


def _checked_values(program: Program, name: str, args: Sequence[Any]) -> list[Any]:
    from labkit.device.parameter import Parameter
    from labkit.sim.declarations import declared_types

    kernel = program.kernel
    declared = declared_types(program)
    if len(args) != len(declared):
        wanted = ", ".join(
            (d.name or d.type) if d else p.type for p, d in zip(kernel.parameters, declared, strict=True)
        )
        message = f"{name} takes {len(declared)} arguments ({wanted}), not {len(args)}."
        raise KernelArgumentError(message, cure="Give one argument for each parameter.")
    parameters = [
        Parameter(number, variable.type, variable.size, about)
        for number, (variable, about) in enumerate(zip(kernel.parameters, declared, strict=True))
    ]
    together = zip(parameters, kernel.parameters, args, strict=True)
    return [_checked(name, parameter, variable, argument) for parameter, variable, argument in together]


def _checked(kernel: str, parameter: Parameter, variable: Variable, argument: Any) -> Any:
    from labkit.device.argument import refuse, shown, to_number

    tensor = argument.tensor if isinstance(argument, Out) else argument
    if is_array(tensor):
        if variable.is_struct:
            refuse(kernel, parameter, f"is a {_struct(parameter)}, not a tensor", "Give its bytes.")
        return _checked_array(kernel, parameter, argument, tensor)
    if isinstance(argument, Out):
        refuse(kernel, parameter, f"is given as Out of {shown(tensor)}", "Give Out(tensor).")
    if isinstance(argument, bytes | np.void):
        return _checked_bytes(kernel, parameter, argument if isinstance(argument, bytes) else argument.tobytes())
    if isinstance(argument, np.float16) and variable.is_struct and parameter.declared is None:
        return _checked_bytes(kernel, parameter, argument.tobytes())
    if isinstance(argument, np.generic | np.ndarray):
        argument = argument.item()
    if variable.is_struct:
        return _checked_half(kernel, parameter, argument)
    return to_number(kernel, parameter, argument)


def _checked_array(kernel: str, parameter: Parameter, argument: Any, tensor: Any) -> Any:
    from labkit.device.argument import check_tensor, refuse

    read_only = isinstance(tensor, np.ndarray) and not tensor.flags.writeable
    if read_only and not parameter.constant:
        refuse(kernel, parameter, "is a read-only array, but the kernel may write to it", "Give a copy of it.")
    view = _as_torch(kernel, parameter, tensor) if isinstance(tensor, np.ndarray) else tensor
    if view.layout != torch.strided:
        refuse(kernel, parameter, f"is a tensor of layout {view.layout}", "Call .to_dense() on it.")
    if view.requires_grad and not parameter.constant:
        refuse(kernel, parameter, "requires gradients, which a kernel cannot keep track of", "Call .detach() on it.")
    check_tensor(kernel, parameter, view, written=isinstance(argument, Out))
    return tensor.copy() if read_only else argument  # a kernel that breaks its promise writes to the copy


def _as_torch(kernel: str, parameter: Parameter, array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The same memory as a tensor, for whose types the declaration can be asked."""
    from labkit.device.argument import refuse

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arrays that are read-only: nothing is written here
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        cure = "Give an array of plain numbers in this machine's byte order, without negative strides."
        refuse(kernel, parameter, f"is a NumPy array of type {array.dtype}: {error}", cure)


def _checked_bytes(kernel: str, parameter: Parameter, data: bytes) -> bytes:
    from labkit.device.argument import refuse

    if len(data) != parameter.size:
        refuse(kernel, parameter, f"has {parameter.size} bytes, not {len(data)}", "Give all of its bytes.")
    return data


def _checked_half(kernel: str, parameter: Parameter, value: Any) -> bytes:
    """The bytes of a number for a half or bfloat16; other structs take no numbers."""
    from labkit.device.argument import refuse, shown, to_float

    dtype = HALVES.get(parameter.written_type) if parameter.declared and not parameter.declared.pointer else None
    if dtype is None:
        refuse(kernel, parameter, f"is a {_struct(parameter)}, not {shown(value)}", "Give its bytes.")
    info = torch.finfo(dtype)
    step = info.eps * 2.0 ** (np.frexp(info.max)[1] - 1)  # between the largest numbers
    number = to_float(kernel, parameter, value, info.max + step / 2)
    return torch.tensor([number], dtype=dtype).view(torch.uint8).numpy().tobytes()


def _struct(parameter: Parameter) -> str:
    return f"struct of {parameter.size} bytes"
