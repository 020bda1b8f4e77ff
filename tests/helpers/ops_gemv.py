"""awq_gemv: every rung against fp64 on the dequantized weight, with fresh weights, outliers, ragged shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers.accuracy import QUANTIZED, Shape, relative_error, rows, shifted
from torch import Tensor

from labkit.ops import awq_gemv
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import pack

# rows, outputs, inputs, group, form, with a residual, elements by which x is shifted
SMALL: dict[str, list[Shape]] = {
    "awq_gemv": [
        (1, 64, 512, 128, "scale_zero", False, 0),
        (2, 24, 192, 64, "scale_zero", True, 0),
        (3, 40, 416, 32, "scale_bias", False, 1),
        (4, 96, 384, 128, "scale_zero", True, 0),
        (5, 33, 160, 32, "scale_zero", False, 0),
        (8, 32, 576, 64, "scale_bias", True, 8),
        (1, 1, 32, 32, "scale_bias", False, 0),
        (1, 32, 6272, 128, "scale_zero", True, 0),  # blocks share K
        (4, 33, 3136, 64, "scale_zero", False, 0),
    ],
    # rows, outputs of gate, inputs, group, form
    "awq_gemv_silu_mul": [
        (1, 32, 256, 128, "scale_zero"),
        (2, 64, 96, 32, "scale_bias"),
        (3, 96, 192, 64, "scale_zero"),
        (8, 32, 128, 128, "scale_bias"),
        (4, 32, 3136, 64, "scale_zero"),
    ],
}
SHARDS = [(17408, 5120), (5120, 8704), (7168, 5120), (8192, 5120), (5120, 3072), (24, 5120)]  # of 27B, two ranks
WHOLE = [(34816, 5120), (5120, 17408), (14336, 5120), (16384, 5120), (5120, 6144), (48, 5120)]
LARGE: dict[str, list[Shape]] = {
    "awq_gemv": [
        *((m, n, k, 128, "scale_zero", m % 2 == 0, 0) for (n, k) in SHARDS for m in (1, 4)),
        *((m, n, k, 32, "scale_zero", False, 0) for (n, k), m in zip(SHARDS, (1, 2, 3, 5, 8, 1), strict=True)),
        *((m, n, k, 64, "scale_bias", True, 0) for (n, k), m in zip(WHOLE, (8, 5, 3, 2, 1, 4), strict=True)),
        (7, 4999, 4992, 128, "scale_zero", True, 1),
        (1, 31, 5120, 64, "scale_bias", False, 0),
    ],
    "awq_gemv_silu_mul": [
        (1, 8704, 5120, 128, "scale_zero"),
        (4, 17408, 5120, 128, "scale_zero"),
        (2, 1536, 576, 32, "scale_bias"),
        (8, 8704, 5120, 32, "scale_zero"),
        (3, 992, 5120, 64, "scale_zero"),
    ],
}


def random_int4(outputs: int, inputs: int, group: int, form: Form, device: str) -> Int4Weight:
    """A weight as files have them: scales of both sizes, zero points up to GPTQ's 16."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=device)
    scale = torch.rand(outputs, inputs // group, device=device) * 0.02 + 1e-4
    zero = torch.randint(0, 17, scale.shape, device=device).float()
    second = zero if form == "scale_zero" else -scale * zero * torch.rand_like(scale)
    return Int4Weight.from_nibbles(q, torch.stack((scale, second), dim=-1).half(), form)


def activations(count: int, inputs: int, device: str) -> Tensor:
    """Rows of different magnitudes, the first with outliers as large models have them."""
    x = rows(count, inputs, device)
    x[0, inputs // 3] = 3e4
    x[0, -1] = -2e4
    return x


def fitting(weight: Int4Weight, x: Tensor) -> Int4Weight:
    """The same weight with scales so small that every result fits fp16."""
    largest = (x.double().norm(dim=-1).max() * weight.dequantize().norm(dim=-1).max()).item()
    factor = 2.0 ** min(0, int(torch.tensor(3e4 / largest).log2().floor()))
    groups = weight.groups.clone()
    groups[..., slice(0, 1) if weight.form == "scale_zero" else slice(0, 2)] *= factor
    return Int4Weight(weight.packed, groups, weight.form)


def check_awq_gemv(rung: str, shape: Shape, device: str) -> None:
    count, outputs, inputs, group, form, with_residual, shift = shape
    x = shifted(activations(count, inputs, device), shift)
    weight = fitting(random_int4(outputs, inputs, group, form, device), x)
    residual = torch.randn(count, outputs).half().to(device) if with_residual else None
    y = awq_gemv.awq_gemv(x, pack(weight), residual=residual, rung=rung)
    exact = x.double() @ weight.dequantize().double().T
    relative_error(y, exact if residual is None else exact + residual.double(), QUANTIZED)


def check_unseen_outlier(rung: str, device: str) -> None:
    """The largest x meets weights of exactly 0: what it does to the others' precision is all that it does."""
    weight = random_int4(64, 1024, 128, "scale_zero", device)
    q = weight.unpack()
    q[:, 100] = weight.groups[:, 0, 1].clamp(max=15).to(torch.uint8)
    groups = weight.groups.clone()
    groups[..., 1].clamp_(max=15)
    weight = Int4Weight.from_nibbles(q, groups, "scale_zero")
    x = torch.randn(4, 1024, device=device).half()
    x[:, 100] = 3e4
    y = awq_gemv.awq_gemv(x, pack(weight), rung=rung)
    relative_error(y, x.double() @ weight.dequantize().double().T, QUANTIZED)


def check_silu_mul(rung: str, shape: Shape, device: str) -> None:
    count, width, inputs, group, form = shape
    x = torch.randn(count, inputs).half().to(device)
    weight = random_int4(2 * width, inputs, group, form, device)
    y = awq_gemv.awq_gemv(x, pack(weight), silu_mul=True, rung=rung)
    gate, up = (x.double() @ weight.dequantize().double().T).chunk(2, dim=-1)
    relative_error(y, gate * gate.sigmoid() * up, QUANTIZED)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "awq_gemv": (awq_gemv.RUNGS, check_awq_gemv),
    "awq_gemv_silu_mul": (awq_gemv.RUNGS, check_silu_mul),
}
FOLDERS: dict[str, str] = {"awq_gemv_silu_mul": "awq_gemv"}
