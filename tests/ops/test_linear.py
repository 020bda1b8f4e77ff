"""Linear layers in torch, in each precision, against fp64 on the same weights."""

from __future__ import annotations

import pytest
import torch
from helpers.linears import random_int4, random_int8, relative

from labkit.ops.linear import Workspace, make_linear
from labkit.ops.linear_torch import INT4_KERNEL_MAX_ROWS, DenseLinear, HalfLinear, Int4KernelLinear

ROWS = (1, 2, 5, INT4_KERNEL_MAX_ROWS, INT4_KERNEL_MAX_ROWS + 1, 100)


@pytest.mark.parametrize("form", ["scale_zero", "scale_bias"])
@pytest.mark.parametrize(("rows", "cols", "group"), [(64, 128, 32), (24, 128, 64), (50, 256, 128), (7, 64, 32)])
def test_int4_layers_compute_with_the_dequantized_weights(
    form: str, rows: int, cols: int, group: int, seed: int
) -> None:
    weight = random_int4(rows, cols, group, form)
    exact, fast = (make_linear(weight, dtype, Workspace()) for dtype in (torch.float32, torch.bfloat16))
    assert isinstance(fast, Int4KernelLinear)
    for m in ROWS:
        x = torch.randn(m, cols).bfloat16()
        expected = x.double() @ weight.dequantize().double().T
        assert relative(exact(x.float()), expected) <= 1e-6
        assert relative(fast(x), expected) <= 1.5e-2  # bf16 scales and results


def test_both_paths_of_the_fast_layer_use_the_same_weights(seed: int) -> None:
    """With identity rows as input each path shows its weights: they agree to the bf16 rounding of the result."""
    layer = Int4KernelLinear(random_int4(48, 64, 32, "scale_zero"), Workspace())
    x = torch.eye(64).bfloat16()
    few = torch.cat([layer(part) for part in x.split(INT4_KERNEL_MAX_ROWS)])
    torch.testing.assert_close(few, layer(x), rtol=2**-7, atol=1e-6)


def test_a_group_size_without_kernel_is_computed_exactly(seed: int) -> None:
    weight = random_int4(16, 96, 16, "scale_bias")
    layer = make_linear(weight, torch.bfloat16, Workspace())
    x = torch.randn(3, 96).bfloat16()
    assert layer.kernel == "dequantize + fp32 GEMM"
    assert relative(layer(x), x.double() @ weight.dequantize().double().T) <= 4e-3


def test_dense_layers(seed: int) -> None:
    weight, x = torch.randn(40, 64), torch.randn(9, 64)
    expected = x.double() @ weight.double().T
    assert relative(make_linear(weight, torch.float32, Workspace())(x), expected) <= 1e-6
    half = make_linear(weight.half(), torch.bfloat16, Workspace())
    assert relative(half(x.bfloat16()), x.bfloat16().double() @ weight.half().double().T) <= 4e-3
    assert isinstance(half, HalfLinear) == ("fbgemm" in torch.backends.quantized.supported_engines)


def test_a_weight_kept_wide_is_multiplied_wide(seed: int) -> None:
    weight = torch.randn(8, 16)
    weight[0, 0] = 1e6  # beyond fp16: the loader hands it over in fp32
    layer = make_linear(weight, torch.bfloat16, Workspace())
    x = torch.randn(2, 16).bfloat16()
    assert isinstance(layer, DenseLinear)
    assert relative(layer(x), x.double() @ weight.double().T) <= 4e-3


def test_int8_weights_are_multiplied_exactly(seed: int) -> None:
    weight, x = random_int8(24, 96, 32), torch.randn(5, 96)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
        layer = make_linear(weight, dtype, Workspace())
        assert layer.kernel == "dequantize + fp32 GEMM" and layer.nbytes == layer.bytes_read(1) == weight.nbytes
        taken = x.to(dtype)
        assert relative(layer(taken), taken.double() @ weight.dequantize().double().T) <= tolerance
