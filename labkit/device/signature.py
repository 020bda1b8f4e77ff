"""What a kernel takes, from its PTX and its declaration, and how Python values become its parameters."""

from __future__ import annotations

import ctypes
import math
import operator
import re
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.device.declaration import Declared, declared_parameters
from labkit.device.parameter import FLOATS, Parameter
from labkit.device.ptx_entry import entry_head, entry_names
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.sim.buffers import Out

PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(?P<type>\w+)\s+[^,\[]*?[\w$]+(?:\[(?P<size>\d+)\])?\s*$")
POINTER = 8  # bytes


class Signature:
    """The parameters of one kernel, and the packing of values for them."""

    def __init__(self, kernel: str, parameters: Sequence[Parameter], max_threads: int | None) -> None:
        self.kernel = kernel  # as messages name it
        self.parameters = tuple(parameters)
        self.max_threads = max_threads  # __launch_bounds__
        self.offsets, self.size = _layout(self.parameters)
        packed = _packed_format(self.parameters, self.offsets)
        self._packer = struct.Struct(packed)
        padding = -self.size % POINTER
        self._pointers = self.size + padding  # where they start, behind the values
        self._packer_with_pointers = struct.Struct(f"{packed}{padding}x{len(self.offsets)}Q")
        self._buffer = ctypes.c_char * max(self._packer_with_pointers.size, POINTER)

    def pack(self, values: Sequence[int | float]) -> bytes:
        """The parameter block: every value at its natural alignment, little-endian."""
        return self._packer.pack(*values)

    def with_pointers(self, values: Sequence[int | float]) -> tuple[Any, int]:
        """A buffer with the parameter block and behind it a pointer to each value; and the address of those pointers.

        This is how the CUDA driver takes parameters. They are read when a launch is made, and the buffer must live
        until then.
        """
        buffer = self._buffer()
        start = ctypes.addressof(buffer)
        self._packer_with_pointers.pack_into(buffer, 0, *values, *[start + offset for offset in self.offsets])
        return buffer, start + self._pointers

    def values(self, arguments: Sequence[Any]) -> tuple[list[int | float], torch.device]:
        """Check the arguments and turn each into a number; pointers become addresses. The device is the tensors'.

        Raises KernelArgumentError, before anything runs.
        """
        if len(arguments) != len(self.parameters):
            wanted = ", ".join(p.declared.name if p.declared else p.type for p in self.parameters)
            message = f"{self.kernel} takes {len(self.parameters)} arguments ({wanted}), not {len(arguments)}."
            raise KernelArgumentError(message, cure="Give one argument for each parameter.")
        values: list[int | float] = []
        device: torch.device | None = None
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            kind = type(argument)
            if kind is int and parameter.least <= argument <= parameter.greatest:  # the usual case of _number
                values.append(argument & parameter.mask)
                continue
            if kind is float and -parameter.limit < argument < parameter.limit:  # the usual case of _float
                values.append(argument)
                continue
            tensor = argument.tensor if kind is Out else argument
            if isinstance(tensor, Tensor):
                self._check_tensor(parameter, tensor, written=kind is Out)
                where = tensor.device
                if device is None:
                    device = where
                elif where != device:
                    self._refuse(parameter, f"lies on {where}, others on {device}", "Move all to one device.")
                values.append(tensor.data_ptr())
            else:
                values.append(self._number(parameter, argument))
        if device is None:
            message = f"{self.kernel} got no tensor: nothing says where it is to run."
            raise KernelArgumentError(message, cure="Give at least one tensor.")
        return values, device

    def _check_tensor(self, parameter: Parameter, tensor: Tensor, written: bool) -> None:
        if not parameter.takes_tensor:
            self._refuse(
                parameter, f"is a number of type {parameter.written_type}, not a tensor", "Give a Python number."
            )
        if parameter.dtypes is not None and tensor.dtype not in parameter.dtypes:
            wanted = " or ".join(str(dtype) for dtype in parameter.dtypes)
            self._refuse(parameter, f"is {tensor.dtype}, but the kernel wants {wanted}", "Convert it with .to(dtype).")
        if not tensor.is_contiguous():
            self._refuse(
                parameter, f"is not contiguous (strides {tuple(tensor.stride())})", "Call .contiguous() on it."
            )
        if written and parameter.constant:
            self._refuse(parameter, "is given as Out, but the kernel only reads it", "Give the tensor itself.")

    def _number(self, parameter: Parameter, value: Any) -> int | float:
        if parameter.takes_tensor and value is None:
            return 0  # a null pointer
        if parameter.declared and parameter.declared.pointer:
            self._refuse(parameter, f"is a pointer, not {value!r}", "Give a tensor, or None for a null pointer.")
        if parameter.type in FLOATS:
            return self._float(parameter, value)
        try:
            number = operator.index(value)
        except TypeError:
            self._refuse(parameter, f"is of type {parameter.written_type}, not {value!r}", "Give a Python int.")
        low, high = parameter.bounds
        if not low <= number <= high:
            self._refuse(parameter, f"is {number}, outside {low} to {high}", "Give a number of the parameter's type.")
        return number & parameter.mask

    def _float(self, parameter: Parameter, value: Any) -> float:
        if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
            self._refuse(parameter, f"is of type {parameter.written_type}, not {value!r}", "Give a Python float.")
        number = float(value)
        if math.isfinite(number) and abs(number) >= FLOATS[parameter.type][1]:
            self._refuse(parameter, f"is {number}, too large for {parameter.written_type}", "Give a smaller number.")
        return number

    def _refuse(self, parameter: Parameter, problem: str, cure: str) -> None:
        raise KernelArgumentError(f"{self.kernel}: {parameter.name} {problem}.", cure=cure)


def read_signature(kernel: str, ptx: str, entry: str, source: str) -> Signature:
    """The signature of ``entry`` in a PTX text. Raises KernelBuildError if the text does not define it."""
    head = entry_head(ptx, entry)
    if head is None:
        there = ", ".join(entry_names(ptx)) or "none"
        raise KernelBuildError(f'{kernel} defines no extern "C" kernel {entry!r}.', cure=f"Kernels in it: {there}.")
    declared = declared_parameters(source, entry)
    count = len(head.parameters)
    known = declared if declared is not None and len(declared) == count else [None] * count
    both = zip(head.parameters, known, strict=True)
    parameters = [_parameter(kernel, index, line, about) for index, (line, about) in enumerate(both)]
    return Signature(kernel, parameters, head.max_threads)


def _parameter(kernel: str, index: int, line: str, declared: Declared | None) -> Parameter:
    match = PARAMETER.match(line)
    if match is None or match["size"]:
        name = declared.name if declared else f"parameter {index}"
        raise KernelBuildError(f"{kernel} takes {name} as a struct.", cure="Pass pointers and plain numbers.")
    return Parameter(index, match["type"], int(match["type"][1:]) // 8, declared)


def _layout(parameters: Sequence[Parameter]) -> tuple[tuple[int, ...], int]:
    offsets, end = [], 0
    for parameter in parameters:
        start = -(-end // parameter.size) * parameter.size
        offsets.append(start)
        end = start + parameter.size
    return tuple(offsets), end


def _packed_format(parameters: Sequence[Parameter], offsets: Sequence[int]) -> str:
    pieces, end = ["<"], 0
    for parameter, offset in zip(parameters, offsets, strict=True):
        pieces.append("x" * (offset - end) + parameter.format)
        end = offset + parameter.size
    return "".join(pieces)
