"""What a kernel takes, from its PTX and its declaration, and how Python values become its parameters."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.device.argument import check_tensor, refuse, to_number
from labkit.device.declaration import Declared, declared_parameters
from labkit.device.parameter import Parameter
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
            if kind is int and parameter.least <= argument <= parameter.greatest:  # the usual case of to_number
                values.append(argument & parameter.mask)
                continue
            if kind is float and -parameter.limit < argument < parameter.limit:  # the usual case of to_float
                values.append(argument)
                continue
            tensor = argument.tensor if kind is Out else argument
            if isinstance(tensor, Tensor):
                check_tensor(self.kernel, parameter, tensor, written=kind is Out)
                where = tensor.device
                if device is None:
                    device = where
                elif where != device:
                    problem = f"lies on {where}, others on {device}"
                    refuse(self.kernel, parameter, problem, "Move all to one device.")
                values.append(tensor.data_ptr())
            else:
                values.append(to_number(self.kernel, parameter, argument))
        if device is None:
            message = f"{self.kernel} got no tensor: nothing says where it is to run."
            raise KernelArgumentError(message, cure="Give at least one tensor.")
        return values, device


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
