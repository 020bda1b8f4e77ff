"""A CUDA file's ``__constant__`` and ``__device__`` variables: set by the host before a launch, read after it.

A program on a GPU does so by cudaMemcpyToSymbol and cudaMemcpyFromSymbol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from labkit.errors import KernelArgumentError
from labkit.sim.memory import Device
from labkit.sim.program import Module, Variable
from labkit.sim.symbols import spelled
from labkit.sim.types import TYPES

Array = npt.NDArray[Any]
WRITTEN_TYPES = {
    "float": np.float32,
    "double": np.float64,
    "half": np.float16,
    "__half": np.float16,
    "bool": np.bool_,
    "char": np.int8,
    "signed char": np.int8,
    "int8_t": np.int8,
    "unsigned char": np.uint8,
    "uint8_t": np.uint8,
    "short": np.int16,
    "int16_t": np.int16,
    "unsigned short": np.uint16,
    "uint16_t": np.uint16,
    "int": np.int32,
    "int32_t": np.int32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "uint32_t": np.uint32,
    "long long": np.int64,
    "int64_t": np.int64,
    "unsigned long long": np.uint64,
    "uint64_t": np.uint64,
}
PTX_KINDS = {"u": "u", "b": "u", "s": "i", "f": "f"}


def set_variables(device: Device, module: Module, values: Mapping[str, Any], text: str) -> None:
    """Give variables their values.

    values: by the name in the source: tensors and arrays of exactly the variable's bytes, bytes, or one number for a
    variable that is no array or struct. text: the CUDA source, which knows the types that PTX has lost; may be "".
    Raises KernelArgumentError, which names the variable at fault; then none of them has changed.
    """
    ready = {
        symbol: _bytes_for(name, module.variables[symbol], value, written_type(text, name))
        for name, value in values.items()
        for symbol in [find_variable(module, name)]
    }
    for symbol, data in ready.items():
        device.variable(module, symbol)[:] = np.frombuffer(data, np.uint8)


def read_variables(device: Device, module: Module) -> dict[str, Array]:
    """What all variables hold now: copies of their bytes, by symbol."""
    return {symbol: device.variable(module, symbol).copy() for symbol in module.variables}


def typed(content: Array, dtype: npt.DTypeLike | None, variable: Variable, text: str, name: str) -> Array:
    """A variable's bytes as an array of one dimension: of the type asked for, else as the source or PTX has it."""
    if dtype is None:
        dtype = written_type(text, name) or _ptx_type(variable)
    wanted = np.dtype(dtype)
    if wanted.itemsize == 0 or content.size % wanted.itemsize:
        raise KernelArgumentError(
            f"The variable {name!r} has {content.size} bytes, which are no whole number of {wanted}.",
            cure="Name the type of its elements.",
        )
    return content.view(wanted)


def find_variable(module: Module, name: str) -> str:
    """The symbol of a variable that the source calls ``name``, whose namespaces may be left out where that is clear.

    Raises KernelArgumentError if there is none, or more than one.
    """
    if name in module.variables:
        return name
    called = [symbol for symbol in module.variables if spelled(symbol) == name]
    called = called or [symbol for symbol in module.variables if spelled(symbol).endswith(f"::{name}")]
    if len(called) == 1:
        return called[0]
    there = ", ".join(spelled(symbol) for symbol in module.variables if not symbol.startswith("$")) or "none"
    raise KernelArgumentError(
        f"The kernels use no variable {name!r}.", cure=f"__constant__ and __device__ variables in use: {there}."
    )


def written_type(text: str, name: str) -> type | None:
    """The element type of a variable as its declaration writes it; None for structs, pointers, what is not found."""
    last = re.escape(name.rpartition("::")[2])
    qualifier = r"(?:__constant__|__device__|static|const|volatile|constexpr|__managed__|alignas\([^)]*\))\s+"
    declaration = re.search(rf"(?:{qualifier})+([a-z_][\w ]*?)\s+(?:const\s+)?{last}\s*(?:\[[^;]*)?[;={{,]", text)
    return WRITTEN_TYPES.get(" ".join(declaration[1].split())) if declaration else None


def _ptx_type(variable: Variable) -> np.dtype[Any]:
    type_ = TYPES[variable.type]
    return np.dtype(f"{PTX_KINDS.get(type_.kind, 'u')}{type_.size}")


def _bytes_for(name: str, variable: Variable, value: Any, written: type | None) -> bytes:
    data = value if isinstance(value, bytes) else _array(name, variable, value, written).tobytes()
    if len(data) != variable.size:
        message = f"The variable {name!r} has {variable.size} bytes, {len(data)} were given."
        raise KernelArgumentError(message, cure="Give all of its elements.")
    return data


def _array(name: str, variable: Variable, value: Any, written: type | None) -> Array:
    """A tensor, array or number as an array of the variable's type."""
    scalar = variable.size == TYPES[variable.type].size or (written and variable.size == np.dtype(written).itemsize)
    known = np.dtype(written) if written else _ptx_type(variable) if scalar else None
    if isinstance(value, bool | int | float | np.generic):
        if known is None or not scalar:
            raise KernelArgumentError(
                f"The variable {name!r} is an array or a struct, {value} was given.", cure="Give an array, or bytes."
            )
        return _number(name, value, known)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.view(torch.uint8).numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        message = f"The variable {name!r} was given {type(value).__name__}."
        raise KernelArgumentError(message, cure="Give a tensor, an array, a number or bytes.")
    sort = {"i": "integers", "u": "integers", "b": "integers", "f": "floats"}
    if known is not None and value.dtype.itemsize > 1 and sort.get(value.dtype.kind) != sort[known.kind]:
        raise KernelArgumentError(
            f"The variable {name!r} holds {known}, an array of {value.dtype} was given.", cure=f"Give {known}."
        )
    return value


def _number(name: str, value: Any, dtype: np.dtype[Any]) -> Array:
    """A number as an array of one element. Raises KernelArgumentError where the type cannot hold it."""
    number = value.item() if isinstance(value, np.generic) else value
    message = f"The variable {name!r} is of type {dtype}, {value!r:.40} does not fit."
    misfit = KernelArgumentError(message, cure=f"Give a number of type {dtype}.")
    if dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        whole = isinstance(number, int) or number.is_integer()
        if not whole or not -(1 << bits - 1) <= number < 1 << bits:
            raise misfit
        return np.array([int(number) & (1 << bits) - 1], f"u{dtype.itemsize}")
    try:
        with np.errstate(over="ignore"):
            array = np.array([number], dtype)
    except OverflowError:
        raise misfit from None
    if dtype.kind == "f" and np.isinf(array[0]) and not np.isinf(number):
        raise misfit
    return array
