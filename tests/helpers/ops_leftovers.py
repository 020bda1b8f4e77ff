"""Checks of the GEMVs over weights that are not INT4: gemv_half, gemv_int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers.accuracy import HALF_STEP, Shape, relative_error, rows, shifted
from torch import Tensor

from labkit.ops import gemv_half, gemv_int8
from labkit.quant.int8 import Int8Weight

SMALL: dict[str, list[Shape]] = {
    # rows of x, outputs, inputs, whether there is a residual, elements by which the weight is shifted in memory
    "gemv_half": [
        (1, 24, 1024, False, 0),
        (3, 19, 1104, True, 0),
        (2, 48, 576, True, 0),
        (8, 13, 1032, False, 0),
        (5, 7, 100, False, 0),
        (4, 33, 129, True, 0),
        (1, 5, 64, False, 1),
    ],
    # rows of x, outputs, inputs, group, whether there is a residual
    "gemv_int8": [
        (1, 24, 2048, 128, False),
        (3, 19, 576, 64, True),
        (8, 13, 1152, 128, True),
        (2, 9, 2080, 32, False),
        (5, 6, 160, 32, False),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "gemv_half": [
        (1, 124160, 5120, False, 0),
        (4, 124160, 5120, False, 0),
        (1, 248320, 5120, False, 0),
        (8, 7168, 5120, False, 0),
        (3, 5120, 3072, True, 0),
        (1, 24, 5120, False, 0),
        (5, 48, 5120, False, 0),
        (2, 4999, 8704, True, 0),
        (6, 333, 4999, False, 3),
    ],
    "gemv_int8": [
        (1, 124160, 5120, 128, False),
        (4, 124160, 5120, 128, False),
        (8, 7168, 5120, 128, False),
        (3, 5120, 3072, 64, True),
        (1, 24, 5120, 128, False),
        (2, 49152, 576, 64, False),
        (5, 4999, 8704, 32, True),
    ],
}


def check_gemv_half(rung: str, shape: Shape, device: str) -> None:
    count, outputs, inputs, with_residual, shift = shape
    weight = shifted((torch.randn(outputs, inputs, device=device) / 8).half(), shift)
    x, residual = rows(count, inputs, device), _residual(count, outputs, with_residual, device)
    y = gemv_half.gemv_half(x, weight, residual=residual, rung=rung)
    relative_error(y, exact_product(x, weight.double(), residual), HALF_STEP)


def check_gemv_int8(rung: str, shape: Shape, device: str) -> None:
    count, outputs, inputs, group, with_residual = shape
    q = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8, device=device)
    scales = (torch.rand(outputs, inputs // group, device=device) * 2e-3).half()
    weight = Int8Weight(q, scales)
    x, residual = rows(count, inputs, device), _residual(count, outputs, with_residual, device)
    y = gemv_int8.gemv_int8(x, weight, residual=residual, rung=rung)
    relative_error(y, exact_product(x, weight.dequantize().double(), residual), HALF_STEP)


def exact_product(x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
    """In fp64."""
    y = x.double() @ weight.T
    return y if residual is None else y + residual.double()


def _residual(count: int, outputs: int, wanted: bool, device: str) -> Any:
    return rows(count, outputs, device) if wanted else None


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "gemv_half": (gemv_half.RUNGS, check_gemv_half),
    "gemv_int8": (gemv_int8.RUNGS, check_gemv_int8),
}
FOLDERS: dict[str, str] = {}
