"""What kernels over quantized weights ask of them: a shape that does not fit would be read beyond its end."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.ops.checks import WIDEST_LOAD
from labkit.quant.int4 import Form
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import GROUP_SIZES, PER_WORD, TILE, PackedInt4

FORMS = get_args(Form)


def check_packed(op: str, weight: Any) -> None:
    """Raises KernelArgumentError for what is no ``PackedInt4``, or one whose data is not what it says."""
    if not isinstance(weight, PackedInt4) or not isinstance(weight.data, Tensor):
        what = "weight's data" if isinstance(weight, PackedInt4) else "weight"
        given = weight.data if isinstance(weight, PackedInt4) else weight
        message = f"{op}: the {what} is a {type(given).__name__}."
        raise KernelArgumentError(message, cure="Pack it for the kernels: labkit.quant.pack.pack(weight).")
    data, size = weight.data, weight.group_size
    if type(weight.outputs) is not int or weight.outputs < 0 or weight.form not in FORMS:
        message = f"{op}: the weight says that it has {weight.outputs!r} outputs of the form {weight.form!r}."
        raise KernelArgumentError(message, cure="Make it with labkit.quant.pack.pack.")
    tiles, words = -(-weight.outputs // TILE), TILE + TILE * size // PER_WORD
    groups = data.shape[1] if data.dim() == 3 else 0
    if data.dtype != torch.int32 or size not in GROUP_SIZES or not groups or data.shape != (tiles, groups, words):
        what = f"{data.dtype} {list(data.shape)} for groups of {size}"
        wanted = f"torch.int32 [{tiles}, groups, {words}] for groups of 32, 64 or 128"
        message = f"{op}: the weight's data is {what}; expected is {wanted}."
        raise KernelArgumentError(message, cure="Make it with labkit.quant.pack.pack.")
    if not data.is_contiguous() or data.data_ptr() % WIDEST_LOAD:
        message = f"{op}: the weight's data is not dense, or does not start at a multiple of {WIDEST_LOAD} bytes."
        raise KernelArgumentError(message, cure="Call .clone() on it.")


def check_int8(op: str, weight: Any) -> None:
    """Raises KernelArgumentError for what is no ``Int8Weight``, whose shapes were checked when it was made."""
    if not isinstance(weight, Int8Weight):
        message = f"{op}: the weight is a {type(weight).__name__}."
        raise KernelArgumentError(message, cure="Quantize it: labkit.quant.round_to_nearest.to_int8(weight).")
