"""From Python arguments to the bytes of a kernel's parameter block."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.errors import KernelArgumentError
from labkit.sim.buffers import WORD, Out, is_array
from labkit.sim.memory import Memory
from labkit.sim.program import Kernel, Variable

FLOATS = {"f16": "e", "f32": "f", "f64": "d"}  # how struct writes them


class Parameters:
    """A kernel's parameter block as ld.param reads it."""

    def __init__(self, block: bytes) -> None:
        self._bytes = np.frombuffer(block, np.uint8)
        self._known: dict[tuple[int, int], Any] = {}

    def copy(self) -> Any:
        """All of its bytes, in an array of their own."""
        return self._bytes.copy()

    def read(self, offset: int, width: int) -> Any:
        """``width`` bytes as an unsigned integer, in an array of shape (1, 1)."""
        value = self._known.get((offset, width))
        if value is None:
            raw = self._bytes[offset : offset + width].copy()
            value = self._known[offset, width] = raw.view(WORD[width]).reshape(1, 1)
        return value


def pack(kernel: Kernel, arguments: list[Any], memory: Memory, device: int, checks: bool) -> bytes:
    """The parameter block; tensors and arrays become accessible in ``memory``.

    Raises KernelArgumentError, which names the parameter, for a wrong number, type or range.
    """
    wanted = kernel.parameters
    if len(arguments) != len(wanted):
        raise KernelArgumentError(
            f"{kernel.name} takes {len(wanted)} arguments, {len(arguments)} were given.",
            cure="Give one argument for each parameter of the kernel, in order.",
        )
    block = bytearray(max((parameter.offset + parameter.size for parameter in wanted), default=0))
    for position, (parameter, argument) in enumerate(zip(wanted, arguments, strict=True)):
        data = _argument_bytes(kernel, parameter, position, argument, memory, device, checks)
        block[parameter.offset : parameter.offset + parameter.size] = data
    return bytes(block)


def _argument_bytes(
    kernel: Kernel, parameter: Variable, position: int, argument: Any, memory: Memory, device: int, checks: bool
) -> bytes:
    def refuse(problem: str, cure: str) -> KernelArgumentError:
        return KernelArgumentError(f"Argument {position} of {kernel.name} ({parameter.type}): {problem}.", cure=cure)

    tensor = argument.tensor if isinstance(argument, Out) else argument
    if is_array(tensor):
        if parameter.size != 8 or parameter.type not in ("u64", "b64", "s64"):
            raise refuse(f"it is no pointer, but {_kind(tensor)} was given", "Give a number.")
        return memory.add(argument if checks else tensor, f"argument {position}", device).to_bytes(8, "little")
    if isinstance(argument, bytes | np.void) or (isinstance(argument, np.float16) and parameter.is_struct):
        data = argument.tobytes() if isinstance(argument, np.generic) else argument
        if len(data) != parameter.size:
            raise refuse(f"it has {parameter.size} bytes, {len(data)} were given", "Give all of its bytes.")
        return data
    if argument is None:
        argument = 0  # a null pointer
    value = argument.item() if isinstance(argument, np.generic) else argument
    if not isinstance(value, bool | int | float):
        raise refuse(f"{_kind(value)} was given", "Give a tensor, an array, a number, or bytes for a struct.")
    if parameter.type in FLOATS:
        return _float_bytes(parameter.type, value, refuse)
    if isinstance(value, float):
        raise refuse(f"it is an integer or a struct, but {value} was given", "Give an int, or the bytes of the struct.")
    if parameter.is_struct or parameter.size not in (1, 2, 4, 8):
        raise refuse(f"it is a struct of {parameter.size} bytes, but {value} was given", "Give its bytes.")
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise refuse(f"{value} does not fit {parameter.size} bytes", "Give a smaller number.")
    return (int(value) & ((1 << bits) - 1)).to_bytes(parameter.size, "little")


def _float_bytes(type_: str, value: float, refuse: Callable[[str, str], KernelArgumentError]) -> bytes:
    try:
        number = float(value)
        return struct.pack("<" + FLOATS[type_], number)
    except OverflowError:
        raise refuse(f"the number is too large for {type_}", "Give a smaller number.") from None


def _kind(argument: Any) -> str:
    return f"a {type(argument).__name__}"
