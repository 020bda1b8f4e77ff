"""Weights that are not what they say, and operands that are none: a typed refusal before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.accuracy import HALF_STEP, relative_error, shifted
from helpers.linears import random_int4, random_int8
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import KernelArgumentError
from labkit.ops import awq_gemm, awq_gemv
from labkit.ops.awq_gemm import awq_gemm as gemm
from labkit.ops.awq_gemv import awq_gemv as gemv
from labkit.ops.dequant_int4 import dequant_int4
from labkit.ops.gemv_half import gemv_half
from labkit.ops.gemv_int8 import gemv_int8
from labkit.ops.half_matmul import int8_matmul
from labkit.ops.workspace import HalfWorkspace
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import PackedInt4, pack

PACKED, X = pack(random_int4(40, 128, 64, "scale_zero")), torch.randn(2, 128).half()
INT8, DENSE = random_int8(6, 128, 64), torch.randn(6, 128).half()
OPERATIONS: dict[str, Callable[[Any], Tensor]] = {
    **{f"awq_gemv {rung}": partial(gemv, X, rung=rung) for rung in awq_gemv.RUNGS},
    **{f"awq_gemm {rung}": partial(gemm, X, rung=rung) for rung in awq_gemm.RUNGS},
    "silu_mul": lambda w: gemv(X, w, silu_mul=True),
    "dequant_int4": dequant_int4,
}
DAMAGED: dict[str, tuple[Any, str]] = {
    "a tile less": (replace(PACKED, data=PACKED.data[1:]), "expected is"),
    "outputs beyond the tiles": (replace(PACKED, outputs=65), "expected is"),
    "outputs below the tiles": (replace(PACKED, outputs=20), "expected is"),
    "half a group": (replace(PACKED, group_size=128), "expected is"),
    "no group size": (replace(PACKED, group_size=16), "expected is"),
    "no groups": (replace(PACKED, data=PACKED.data[:, :0]), "expected is"),
    "words cut off": (replace(PACKED, data=PACKED.data[..., 1:]), "expected is"),
    "every other group": (replace(PACKED, data=PACKED.data.repeat(1, 2, 1)[:, ::2]), "not dense"),
    "an odd address": (replace(PACKED, data=shifted(PACKED.data, 1)), "multiple of 16 bytes"),
    "floats": (replace(PACKED, data=PACKED.data.float()), "float32"),
    "no data": (replace(PACKED, data=None), "weight's data is a NoneType"),  # type: ignore[arg-type]
    "outputs of -1": (replace(PACKED, outputs=-1), "-1 outputs"),
    "outputs of 40.0": (replace(PACKED, outputs=40.0), "40.0 outputs"),  # type: ignore[arg-type]
    "no form": (replace(PACKED, form="other"), "other"),  # type: ignore[arg-type]
    "not packed": (random_int4(40, 128, 64, "scale_zero"), "weight is a Int4Weight"),
    "none": (None, "weight is a NoneType"),
}


@pytest.mark.parametrize(("weight", "told"), DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("op", OPERATIONS)
def test_damaged_weights_are_refused(op: str, weight: Any, told: str) -> None:
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        OPERATIONS[op](weight)
    assert caught.value.cure


def odd(*shape: int) -> Tensor:
    """Zeros whose first byte lies inside an element's place."""
    return torch.frombuffer(bytearray(2 * torch.Size(shape).numel() + 1), dtype=torch.float16, offset=1).view(shape)


ANY: Any = None
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gemv without x": (lambda: gemv(ANY, PACKED), "x is a NoneType"),
    "gemm without x": (lambda: gemm(ANY, PACKED), "x is a NoneType"),
    "gemv_half without x": (lambda: gemv_half(ANY, DENSE), "x is a NoneType"),
    "gemv_half without a weight": (lambda: gemv_half(X, ANY), "weight is a NoneType"),
    "gemv_int8 without x": (lambda: gemv_int8(ANY, INT8), "x is a NoneType"),
    "gemv_int8 without a weight": (lambda: gemv_int8(X, ANY), "weight is a NoneType"),
    "int8_matmul without a weight": (lambda: int8_matmul(X, ANY, HalfWorkspace()), "weight is a NoneType"),
    "int8_matmul of no outputs and another K": (
        lambda: int8_matmul(X[:, :64], Int8Weight(INT8.q[:0], INT8.scales[:0]), HalfWorkspace()),
        r"expected is \[rows, 128\]",
    ),
    "scales at an odd address": (lambda: gemv_int8(X, Int8Weight(INT8.q, odd(6, 2))), "not dense"),
    "scales that train": (
        lambda: gemv_int8(X, Int8Weight(INT8.q, INT8.scales.clone().requires_grad_())),
        "requires a gradient",
    ),
    "tile 1": (lambda: dequant_int4(PACKED, tiles=1), "tiles 1 of 2"),  # type: ignore[arg-type]
    "tiles by name": (lambda: dequant_int4(PACKED, tiles=slice("a", None)), "plain range"),
    "half a tile": (lambda: dequant_int4(PACKED, tiles=slice(0.5, 1)), "plain range"),
    "x elsewhere": (lambda: gemv(X.to("meta"), PACKED), "one device"),
    "weight elsewhere": (lambda: gemv(X, PACKED.to("meta")), "one device"),
    "gemm weight elsewhere": (lambda: gemm(X, PACKED.to("meta")), "one device"),
}


@pytest.mark.parametrize(("compute", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_typed(compute: Callable[[], Any], told: str) -> None:
    with torch.enable_grad(), use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        compute()
    assert caught.value.cure


def test_a_weight_without_outputs_gives_none() -> None:
    empty = PackedInt4(PACKED.data[:0], 0, 64, "scale_zero")
    with use_executor("sim"):
        assert gemv(X, empty).shape == gemm(X, empty).shape == gemv(X, empty, silu_mul=True).shape == (2, 0)


def test_a_residual_may_lie_anywhere(seed: int) -> None:
    residual, exact = odd(2, 6), X.double() @ DENSE.double().T
    with use_executor("sim"):
        relative_error(gemv_half(X, DENSE, residual=residual), exact, HALF_STEP)
        assert torch.equal(gemv(X, PACKED, residual=odd(2, 40)), gemv(X, PACKED))


def test_gradients_flow_in_torch() -> None:
    """As the refusal on kernels advises."""
    for compute in (lambda x: gemv(x, PACKED), lambda x: gemm(x, PACKED), lambda x: gemv_half(x, DENSE)):
        x = X.clone().requires_grad_()
        with torch.enable_grad(), use_executor("torch"):
            compute(x).sum().backward()
        assert x.grad is not None and bool(x.grad.any())
