"""Round to nearest: half a step at most without clipping, never more error with it, and what cannot be packed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.quant import round_to_nearest
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import pack, unpack
from labkit.quant.round_to_nearest import NO_CLIPPING, largest_group, to_int4, to_int8

SHAPES = [(24, 576, None), (7, 128, 32), (33, 256, 64), (3, 96, None)]
Quantize = Callable[..., Int4Weight | Int8Weight]


def group_errors(weight: Tensor, made: Int4Weight | Int8Weight) -> Tensor:
    """Squared error of every group, in fp64: [N, K / g]."""
    return (made.dequantize().double() - weight.double()).square().unflatten(1, (-1, made.group_size)).sum(-1)


def outliers(outputs: int, inputs: int) -> Tensor:
    """Weights as trained matrices have them: a bell curve, and a few far outside of it."""
    weight = torch.randn(outputs, inputs) * 0.02
    return torch.where(torch.rand(outputs, inputs) < 0.004, weight * 12, weight).half()


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_int4_without_clipping_is_within_a_step(seed: int, outputs: int, inputs: int, group: int | None) -> None:
    """Half a step from rounding the weight, and half a step at an end of the range from rounding the zero point."""
    weight = outliers(outputs, inputs)
    made = to_int4(weight, group_size=group, shrinks=NO_CLIPPING)
    step = made.groups[..., :1].float()
    error = (made.dequantize() - weight.float()).abs().unflatten(1, (-1, made.group_size))
    assert bool((error <= step * 1.01).all()) and made.group_size == (group or largest_group(inputs))
    assert bool((error.mean((1, 2)) <= 0.3 * step.mean((1, 2))).all())  # a quarter of a step on the average


@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_int8_without_clipping_is_within_half_a_step(seed: int, outputs: int, inputs: int, group: int | None) -> None:
    weight = outliers(outputs, inputs)
    made = to_int8(weight, group_size=group, shrinks=NO_CLIPPING)
    error = (made.dequantize() - weight.float()).abs().unflatten(1, (-1, made.group_size))
    # The scale is rounded to half, 1 in 2048: at 127 steps that is 0.06 of a step more.
    assert bool((error <= made.scales.float().unsqueeze(-1) * 0.57).all())


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_clipping_never_adds_error(seed: int, quantize: Quantize, outputs: int, inputs: int, group: int | None) -> None:
    weight = outliers(outputs, inputs)
    plain, clipped = (
        group_errors(weight, quantize(weight, group_size=group, **k)) for k in ({"shrinks": NO_CLIPPING}, {})
    )
    assert bool((clipped <= plain * (1 + 1e-5)).all())


def test_clipping_helps_where_a_few_weights_lie_far_outside(seed: int) -> None:
    weight = outliers(256, 1024)
    plain, clipped = (float(group_errors(weight, to_int4(weight, **k)).sum()) for k in ({"shrinks": NO_CLIPPING}, {}))
    assert clipped < 0.97 * plain


def test_what_already_lies_on_a_grid_comes_back(seed: int) -> None:
    """Every nibble occurs in every group, with scales that are powers of two: nothing is rounded."""
    q = torch.stack([torch.randperm(32) % 16 for _ in range(12)]).repeat(1, 4)
    zero, scale = torch.randint(1, 15, (12, 1)), 2.0 ** torch.randint(-8, 0, (12, 1))
    weight = (q - zero) * scale
    made = to_int4(weight, group_size=32)
    assert torch.equal(made.dequantize(), weight.float())
    assert torch.equal(unpack(pack(made)).unpack(), q.to(torch.uint8))  # as the kernels' order takes it
    sevens = torch.stack([torch.randperm(64) * 2 - 63 for _ in range(12)]) * 1.0
    sevens[:, 0] = 127
    assert torch.equal(to_int8(sevens).dequantize(), sevens)


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
def test_groups_of_one_sign_and_of_zeros(quantize: Quantize) -> None:
    weight = torch.ones(4, 128)
    weight[1], weight[2], weight[3, 32:] = -3, 0, 0
    made = quantize(weight, group_size=32)
    torch.testing.assert_close(made.dequantize(), weight, rtol=1e-3, atol=0)


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
def test_weights_next_to_nothing(seed: int, quantize: Quantize) -> None:
    """Beside others: their scale would round to 0 in half precision; the smallest half serves, and an error of at most
    one of it. A whole matrix of them is refused."""
    weight = torch.randn(3, 64) * 1e-8
    weight[0] = torch.randn(64)
    assert float((quantize(weight).dequantize() - weight)[1:].abs().max()) <= 2.0**-24


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
def test_rows_are_done_in_blocks(seed: int, quantize: Quantize, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = outliers(37, 128)
    whole = quantize(weight).dequantize()
    monkeypatch.setattr(round_to_nearest, "BLOCK", 5 * 128)
    assert torch.equal(quantize(weight).dequantize(), whole)


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_given_weight_stays_as_it_was(seed: int, quantize: Quantize, dtype: torch.dtype) -> None:
    weight = torch.randn(5, 64).to(dtype)
    before = weight.clone()
    quantize(weight)
    assert torch.equal(weight, before)


@pytest.mark.parametrize("quantize", [to_int4, to_int8])
@pytest.mark.parametrize(
    ("weight", "group", "words"),
    [
        (torch.ones(2, 40), None, "40 inputs do not divide into groups of 32, 64 or 128"),
        (torch.ones(2, 96), 64, "96 inputs do not divide into groups of 64"),
        (torch.ones(2, 96), 48, "groups of 48"),
        (torch.ones(64), None, "cannot be quantized"),
        (torch.ones(2, 64, dtype=torch.int8), None, "cannot be quantized"),
        (torch.full((2, 64), 1e8), None, "would not fit half"),
        (torch.full((2, 64), float("nan")), None, "would not fit half"),
        (torch.full((2, 64), -5e-7), None, "so small that its scales would vanish"),
    ],
)
def test_what_cannot_be_packed(quantize: Quantize, weight: Tensor, group: int | None, words: str) -> None:
    with pytest.raises(KernelArgumentError, match=words):
        quantize(weight, group_size=group)


@pytest.mark.parametrize(("inputs", "group"), [(5120, 128), (576, 64), (96, 32), (100, None)])
def test_largest_group(inputs: int, group: int | None) -> None:
    assert largest_group(inputs) == group
