"""Every rung of every operation against its definition in fp64, on whatever device: random inputs, ragged shapes.

``check(op, rung, shape, device)`` draws inputs, runs the rung and compares. SMALL are the shapes for the simulator,
LARGE those for a GPU; the first rows are ordinary, the later ones odd lengths, strides, offsets and lone elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from helpers import (
    ops_attention_decode,
    ops_attention_prefill,
    ops_dequant,
    ops_gdn,
    ops_gdn_decode,
    ops_gdn_prefill,
    ops_gemm,
    ops_gemv,
    ops_kv,
    ops_leftovers,
    ops_qk,
    ops_sparse,
)
from helpers.accuracy import FP32_SUMS, HALF_STEP, Shape, relative_error, rows, shifted
from helpers.ops_kv import spaced
from torch import Tensor

from labkit.ops import rmsnorm, rope, silu_mul, softmax_online, split_k

SMALL: dict[str, list[Shape]] = {
    # rows, elements, zero-centred weight, elements by which x is shifted in memory
    "rmsnorm": [(3, 256, False, 0), (2, 512, True, 8), (1, 2048, False, 0), (5, 100, True, 0), (4, 33, False, 1)],
    "add_rmsnorm": [(3, 256, False, 0), (2, 512, True, 8), (1, 2048, True, 0), (5, 100, False, 0), (3, 257, False, 1)],
    # rows, outputs, shift
    "silu_mul": [(3, 768, 0), (1, 2056, 0), (5, 100, 0), (4, 33, 0), (2, 64, 1), (7, 1, 0)],
    # tokens, heads of q and k (0: q alone), head, rotated part, elements between the heads and the next token
    "rope": [
        (3, 4, 2, 256, 64, 0),
        (2, 3, 1, 64, 64, 64),
        (5, 9, 0, 16, 16, 4),
        (1, 1, 1, 6, 2, 0),
        (2, 5, 1, 20, 12, 3),
    ],
    # rows, columns, scale, shift
    "softmax_online": [(2, 512, 1.0, 0), (3, 100, 0.125, 0), (1, 2500, 2.0, 0), (4, 33, 1.0, 1), (5, 1, 1.0, 0)],
}
LARGE: dict[str, list[Shape]] = {
    "rmsnorm": [
        (1, 5120, False, 0),
        (4096, 5120, True, 8),
        (98304, 256, False, 0),
        (300, 4999, True, 0),
        (9, 32767, False, 1),
    ],
    "add_rmsnorm": [
        (1, 5120, False, 0),
        (4096, 5120, True, 8),
        (70001, 64, False, 0),
        (300, 4999, True, 0),
        (9, 32768, False, 1),
    ],
    "silu_mul": [(1, 17408, 0), (4096, 17408, 0), (300, 8704, 8), (33, 4999, 0), (1000, 130, 1)],
    "rope": [
        (1, 24, 4, 256, 64, 0),
        (4096, 24, 4, 256, 64, 2048),
        (300, 9, 0, 64, 64, 192),
        (77, 3, 1, 20, 12, 3),
        (5, 32, 8, 128, 128, 0),
    ],
    "softmax_online": [
        (1, 248320, 1.0, 0),
        (64, 8192, 0.7, 0),
        (5000, 33, 1.0, 1),
        (17, 151936, 1.25, 0),
        (3, 49157, 0.1, 0),
    ],
}


def check_rmsnorm(rung: str, shape: Shape, device: str) -> None:
    count, size, zero_centered, shift = shape
    x, weight = shifted(rows(count, size, device), shift), torch.randn(size).to(device)
    y = rmsnorm.rmsnorm(x, weight, 1e-6, zero_centered=zero_centered, rung=rung)
    relative_error(y, exact_rmsnorm(x, weight, zero_centered), HALF_STEP)


def check_add_rmsnorm(rung: str, shape: Shape, device: str) -> None:
    count, size, zero_centered, shift = shape
    x, residual = (shifted(rows(count, size, device), n) for n in (shift, 0))
    weight, total = torch.randn(size).to(device), x + residual
    y = rmsnorm.add_rmsnorm(x, residual, weight, 1e-6, zero_centered=zero_centered, rung=rung)
    assert torch.equal(x, total)
    relative_error(y, exact_rmsnorm(total, weight, zero_centered), HALF_STEP)


def exact_rmsnorm(x: Tensor, weight: Tensor, zero_centered: bool) -> Tensor:
    gain = weight.double() + (1 if zero_centered else 0)
    return x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain


def check_silu_mul(rung: str, shape: Shape, device: str) -> None:
    count, size, shift = shape
    gate_up = torch.randn(count, 2 * size) * torch.tensor([5.0, 2.0]).repeat_interleave(size)
    gate_up[0, 0] = -60000.0  # exp(-gate) overflows, and the result is 0
    x = shifted(gate_up.half().to(device), shift)
    y = silu_mul.silu_mul(x, rung=rung)
    gate, up = x.double().chunk(2, dim=-1)
    relative_error(y, gate * gate.sigmoid() * up, HALF_STEP)


def check_rope(rung: str, shape: Shape, device: str) -> None:
    tokens, q_heads, k_heads, dim, rotary_dim, gap = shape
    positions = torch.randint(0, 5000, (tokens,))
    tables = [x.to(device) for x in rope.rope_table(rope.inverse_frequencies(1e4, rotary_dim), positions)]
    inputs = [spaced(torch.randn(tokens, h, dim).half().to(device), gap) for h in (q_heads, k_heads) if h]
    call: Callable[..., Any] = rope.apply_rope_qk if k_heads else rope.apply_rope
    turned = call(*inputs, *tables, rung=rung)
    for x, y in zip(inputs, turned if k_heads else [turned], strict=True):
        assert torch.equal(y[..., rotary_dim:], x[..., rotary_dim:])
        relative_error(y.flatten(1), exact_rope(x, *tables).flatten(1), HALF_STEP)


def exact_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs as complex numbers, times cos + i sin."""
    half = cos.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.complex(cos[..., half:].double(), sin[..., half:].double())
    return torch.cat((turned.real, turned.imag, x[..., 2 * half :].double()), dim=-1)


def check_softmax_online(rung: str, shape: Shape, device: str) -> None:
    count, columns, scale, shift = shape
    x = torch.randn(count, columns) * 8
    if columns > 1:
        x[0, : columns // 2] = -float("inf")  # masked, from the start of the row on
        x[-1, -1] = -float("inf")
    x = shifted(x.to(device), shift)
    y = softmax_online.softmax(x, scale, rung=rung)
    relative_error(y, (x.double() * scale).softmax(-1), FP32_SUMS)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "rmsnorm": (rmsnorm.RUNGS, check_rmsnorm),
    "add_rmsnorm": (rmsnorm.RUNGS, check_add_rmsnorm),
    "silu_mul": (silu_mul.RUNGS, check_silu_mul),
    "rope": (rope.RUNGS, check_rope),
    "softmax_online": (softmax_online.RUNGS, check_softmax_online),
}

FOLDERS: dict[str, str] = {"add_rmsnorm": "rmsnorm"}
"""Operation -> folder of cuda/, where the two have different names."""

for part in (
    ops_attention_decode,
    ops_attention_prefill,
    ops_gemv,
    ops_gemm,
    ops_dequant,
    ops_leftovers,
    ops_kv,
    ops_qk,
    ops_sparse,
    ops_gdn,
    ops_gdn_decode,
    ops_gdn_prefill,
):
    SMALL |= part.SMALL
    LARGE |= part.LARGE
    CHECKS |= part.CHECKS
    FOLDERS |= part.FOLDERS


def cases(shapes: dict[str, list[Shape]]) -> list[tuple[str, str, Shape]]:
    """(operation, rung, shape) for every rung of every operation."""
    return [(op, rung, shape) for op, (rungs, _) in CHECKS.items() for rung in rungs for shape in shapes[op]]


def case_id(value: Any) -> str:
    return "-".join(map(str, value)).replace(" ", "") if isinstance(value, tuple) else str(value)


def check(op: str, rung: str, shape: Shape, device: str) -> None:
    """Draw inputs, run the rung on ``device`` and compare with fp64; AssertionError says by how much it is off.

    On the simulator every launch has its own counters of arrived blocks; the kernels must leave them at 0.
    """
    given: list[Tensor] = []

    def noting(device: torch.device, count: int) -> Tensor:
        given.append(torch.zeros(count, dtype=torch.int32, device=device))
        return given[-1]

    with mock.patch.object(split_k, "own_counters", noting):
        CHECKS[op][1](rung, shape, device)
    if device == "cpu":
        assert not any(counters.any() for counters in given), "counters of arrived blocks are not 0 again"
