"""Checks of the tensor-core products with INT4 weights: see ops.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers.accuracy import QUANTIZED, Shape, relative_error, rows, shifted

from labkit.ops.awq_gemm import RUNGS, awq_gemm
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import pack

SMALL: dict[str, list[Shape]] = {
    # rows, outputs, inputs, group, form, elements by which x is shifted in memory
    "awq_gemm": [
        (5, 40, 256, 64, "scale_zero", 0),  # M a part of one product, N of two tiles
        (1, 24, 192, 32, "scale_bias", 0),  # Gated DeltaNet's b and a at TP=2; few steps
        (13, 130, 640, 128, "scale_zero", 8),  # both m-tiles of 4_small_m, its warps share K unevenly
        (33, 33, 128, 32, "scale_zero", 3),  # one row and one output more than tiles hold; an odd address
        (129, 260, 64, 32, "scale_bias", 0),  # one row and four outputs more than the large tile
    ]
}
LARGE: dict[str, list[Shape]] = {
    # The linear layers of Qwen3.5-27B on one of two ranks
    "awq_gemm": [
        (1, 17408, 5120, 128, "scale_zero", 0),  # gate and up
        (4, 5120, 8704, 128, "scale_zero", 0),  # down
        (16, 7168, 5120, 32, "scale_zero", 8),  # q, k and v
        (33, 5120, 3072, 64, "scale_zero", 0),  # o
        (129, 8192, 5120, 128, "scale_zero", 0),  # Gated DeltaNet's q, k, v and z
        (1024, 5120, 3072, 32, "scale_bias", 0),  # and its output
        (13, 24, 5120, 128, "scale_zero", 0),  # its b and a
        (1024, 48, 5120, 64, "scale_zero", 0),
        (3, 5121, 8704, 32, "scale_bias", 3),
        (2, 5120, 8704, 64, "scale_zero", 0),
        (5, 17408, 5120, 32, "scale_zero", 0),
        (8, 5120, 3072, 128, "scale_bias", 0),
        (64, 7168, 5120, 128, "scale_zero", 0),
    ]
}


def random_weight(outputs: int, inputs: int, group: int, form: Form, device: str = "cpu") -> Int4Weight:
    """Values about 1 / sqrt(K) in size, and every nibble and zero point there is."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=device)
    scale = torch.rand(outputs, inputs // group, 1, device=device) * inputs**-0.5
    zero = torch.randint(0, 17, scale.shape, device=device).float()
    return Int4Weight.from_nibbles(
        q, torch.cat((scale, zero if form == "scale_zero" else -7.5 * scale), dim=-1).half(), form
    )


def exact_weight(weight: Int4Weight) -> torch.Tensor:
    """The weight in fp64, without a rounding."""
    scale, other = weight.groups.double().repeat_interleave(weight.group_size, dim=1).unbind(-1)
    q = weight.unpack().double()
    return (q - other) * scale if weight.form == "scale_zero" else q * scale + other


def check_awq_gemm(rung: str, shape: Shape, device: str) -> None:
    count, outputs, inputs, group, form, shift = shape
    weight = random_weight(outputs, inputs, group, form, device)
    x = shifted(rows(count, inputs, device), shift)
    y = awq_gemm(x, pack(weight), rung=rung)
    relative_error(y, x.double() @ exact_weight(weight).T, QUANTIZED)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {"awq_gemm": (RUNGS, check_awq_gemm)}
FOLDERS: dict[str, str] = {}
