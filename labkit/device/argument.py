"""One argument held against its parameter: the refusals that name the parameter and the cure."""

from __future__ import annotations

import math
import operator
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from labkit.device.parameter import FLOATS, Parameter
from labkit.errors import KernelArgumentError


def refuse(kernel: str, parameter: Parameter, problem: str, cure: str) -> NoReturn:
    """Raises KernelArgumentError: "kernel: argument 2 (n) <problem>." """
    raise KernelArgumentError(f"{kernel}: {parameter.name} {problem}.", cure=cure)


def shown(value: Any) -> str:
    """A value as a message can hold it."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an int of {value.bit_length()} bits"
    return f"{value!r:.60}"


def check_tensor(kernel: str, parameter: Parameter, tensor: Tensor, written: bool) -> None:
    """Raises KernelArgumentError unless the parameter takes this tensor. written: it is given as Out."""
    if not parameter.takes_tensor:
        problem = f"is a number of type {parameter.written_type}, not a tensor"
        refuse(kernel, parameter, problem, "Give a Python number.")
    if parameter.dtypes is not None and tensor.dtype not in parameter.dtypes:
        wanted = " or ".join(str(dtype) for dtype in parameter.dtypes)
        problem = f"is {tensor.dtype}, but the kernel wants {wanted}"
        refuse(kernel, parameter, problem, "Convert it with .to(dtype).")
    if not tensor.is_contiguous():
        problem = f"is not contiguous (strides {tuple(tensor.stride())})"
        refuse(kernel, parameter, problem, "Call .contiguous() on it.")
    if written and parameter.constant:
        refuse(kernel, parameter, "is given as Out, but the kernel only reads it", "Give the tensor itself.")


def to_number(kernel: str, parameter: Parameter, value: Any) -> int | float:
    """A Python number as the parameter takes it; integers as their unsigned bits. Raises KernelArgumentError."""
    if parameter.takes_tensor and value is None:
        return 0  # a null pointer
    if parameter.declared and parameter.declared.pointer:
        refuse(kernel, parameter, f"is a pointer, not {shown(value)}", "Give a tensor, or None for a null pointer.")
    if parameter.type in FLOATS:
        return to_float(kernel, parameter, value, FLOATS[parameter.type][1])
    try:
        number = operator.index(value)
    except TypeError:
        refuse(kernel, parameter, f"is of type {parameter.written_type}, not {shown(value)}", "Give a Python int.")
    low, high = parameter.bounds
    if not low <= number <= high:
        refuse(
            kernel, parameter, f"is {shown(number)}, outside {low} to {high}", "Give a number of the parameter's type."
        )
    return number & parameter.mask


def to_float(kernel: str, parameter: Parameter, value: Any, limit: float) -> float:
    """A Python float below ``limit``, from where on numbers round to infinity. Raises KernelArgumentError."""
    # Complex numbers and arrays of one element may have __float__ too, and then warn or fail in it.
    real = hasattr(value, "__float__") and not isinstance(value, complex) and not getattr(value, "shape", ())
    if isinstance(value, str | bytes) or not real or np.iscomplexobj(value):
        refuse(kernel, parameter, f"is of type {parameter.written_type}, not {shown(value)}", "Give a Python float.")
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        refuse(kernel, parameter, f"is too large for {parameter.written_type}", "Give a smaller number.")
    if math.isfinite(number) and abs(number) >= limit:
        refuse(kernel, parameter, f"is {number}, too large for {parameter.written_type}", "Give a smaller number.")
    return number
