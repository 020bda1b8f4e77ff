"""From Python arguments to the bytes of a kernel's parameter block."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.errors import KernelArgumentError
from labkit.sim.buffers import WORD, Out, is_array
from labkit.sim.memory import Memory
from labkit.sim.program import Kernel, Variable

FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


class Parameters:
    """A kernel's parameter block as ld.param reads it."""

    def __init__(self, block: bytes) -> None:
        self._bytes = np.frombuffer(block, np.uint8)
        self._known: dict[tuple[int, int], Any] = {}

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
    if isinstance(argument, bytes | np.generic):
        data = bytes(argument) if isinstance(argument, bytes) else argument.tobytes()
        if len(data) == parameter.size:
            return data
        if isinstance(argument, bytes):
            raise refuse(f"it has {parameter.size} bytes, {len(data)} were given", "Give all of its bytes.")
        argument = argument.item()
    if argument is None:
        argument = 0  # a null pointer
    if not isinstance(argument, bool | int | float):
        raise refuse(f"{_kind(argument)} was given", "Give a tensor, an array, a number, or bytes for a struct.")
    if parameter.type in FLOATS or (isinstance(argument, float) and parameter.size == 2):
        return FLOATS.get(parameter.type, np.float16)(argument).tobytes()
    if isinstance(argument, float):
        raise refuse(f"it is an integer, but {argument} was given", "Give an int.")
    if parameter.size not in (1, 2, 4, 8):
        raise refuse(f"it is a struct of {parameter.size} bytes, but {argument} was given", "Give its bytes.")
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= argument < 1 << bits:
        raise refuse(f"{argument} does not fit {parameter.size} bytes", "Give a smaller number.")
    return (int(argument) & ((1 << bits) - 1)).to_bytes(parameter.size, "little")


def _kind(argument: Any) -> str:
    return f"a {type(argument).__name__}"
