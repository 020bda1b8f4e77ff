"""Keys and values in INT8 and INT4: within half a step, whatever the magnitude; the rotation changes no score."""

from __future__ import annotations

import pytest
import torch
from helpers.pretend_gpu import GPU, pretend_gpu

from labkit.errors import ConfigError
from labkit.quant.kv import (
    BITS,
    KVFormat,
    dequantize_int4,
    dequantize_int8,
    hadamard,
    quantize_int4,
    quantize_int8,
)

NEARLY_HALF = 0.5 + 2e-3  # the sum q s + b is rounded too


@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 1.0, 300.0, 1e5])
def test_int8_round_trip_is_within_half_a_step(magnitude: float, seed: int) -> None:
    x = torch.randn(50, 3, 64) * magnitude
    x[0, 0, 0] = 50 * magnitude  # an outlier widens the step of its own row only
    q, scale = quantize_int8(x)
    assert ((dequantize_int8(q, scale) - x).abs() <= scale.float()[..., None] * 0.5001).all()
    assert dequantize_int8(*quantize_int8(torch.zeros(2, 8))).abs().max() == 0


@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 1.0, 300.0, 1e4])
@pytest.mark.parametrize("shift", [0.0, 40.0, -1000.0])
@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256])
def test_int4_round_trip_is_within_half_a_step(magnitude: float, shift: float, dim: int, seed: int) -> None:
    x = torch.randn(40, 3, dim) * magnitude + shift
    x[0, 0, 0] += 3 * magnitude
    words, pairs = quantize_int4(x)
    step = pairs[..., 0].float().repeat_interleave(dim // pairs.shape[-2], dim=-1)
    assert ((dequantize_int4(words, pairs) - x).abs() <= step * NEARLY_HALF + 2e-7 * x.abs()).all()
    assert words.shape == (40, 3, dim // 8) and words.dtype == torch.int32


def near_the_largest_half() -> torch.Tensor:
    """fp32 [400, 64] of halves: their largest is one of the last 200 below infinity, their least anything."""
    halves = torch.linspace(65504 - 200 * 32, 65504, 201).repeat(2)[:400, None]
    x = -halves + 2 * halves * torch.rand(400, 64)
    x[:, 5:6] = halves
    x[200:, 7] = -65504
    return x.half().float()


def test_every_code_of_large_values_is_a_finite_half(seed: int) -> None:
    """Half steps hold there too: the next lower step moves the last code by less than that."""
    x = near_the_largest_half()
    q, scale = quantize_int8(x)
    assert (127 * scale.float() <= 65504).all()
    assert ((dequantize_int8(q, scale) - x).abs() <= scale.float()[..., None] * 0.5001).all()
    words, pairs = quantize_int4(x)
    step, low = pairs[..., 0].float(), pairs[..., 1].float()
    assert (low + 15 * step <= 65504).all() and dequantize_int4(words, pairs).half().isfinite().all()
    assert ((dequantize_int4(words, pairs) - x).abs() <= step * NEARLY_HALF).all()
    rounded = ((x.amax(-1) - low[:, 0]) / 15).half().float()
    assert (low[:, 0] + 15 * rounded > 65504).any(), "no group of these would pass the largest half"


def test_int4_of_equal_values_and_of_nan() -> None:
    same = torch.full((2, 64), 3.25)
    assert torch.equal(dequantize_int4(*quantize_int4(same)), same)
    same[0, 5] = float("nan")
    back = dequantize_int4(*quantize_int4(same))
    assert back[0].isnan().all() and torch.equal(back[1], same[1])


@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256])
def test_the_rotation_keeps_scores_and_undoes_itself(dim: int, seed: int) -> None:
    q, k = torch.randn(20, dim), torch.randn(30, dim)
    torch.testing.assert_close(hadamard(q) @ hadamard(k).T, q @ k.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hadamard(hadamard(k)), k, rtol=1e-5, atol=1e-5)
    outlier = torch.zeros(dim)
    outlier[dim // 2] = 100.0
    spread = hadamard(outlier).abs()
    assert spread.max() <= 100 / (dim & -dim) ** 0.5 + 1e-3


def test_rotated_keys_in_int4_lose_less(seed: int) -> None:
    k = torch.randn(200, 256)
    k[:, :4] *= 12
    plain = (dequantize_int4(*quantize_int4(k)) - k).norm()
    turned = (hadamard(dequantize_int4(*quantize_int4(hadamard(k)))) - k).norm()
    assert turned < 0.8 * plain


def test_formats() -> None:
    for name, bits in BITS.items():
        made = KVFormat.named(name, torch.bfloat16)
        assert (made.k_bits, made.v_bits) == bits and made.rotates == (bits[0] == 4)
    assert KVFormat.named("fp16", torch.float32).dtype == torch.float16
    sizes = [KVFormat.named(name, torch.float32).bytes_per_head(256) for name in BITS]
    assert sizes == [2048, 1024, 2 * 258, 2 * (128 + 16), 258 + 144]
    with pytest.raises(ConfigError, match="Choose one of auto"):
        KVFormat.named("fp8", torch.float16)
    with pytest.raises(ConfigError, match="multiple of 8"):
        quantize_int4(torch.zeros(2, 12))


def test_a_gpu_is_neither_asked_nor_told_anything(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each would wait for it, in every layer where the library attends."""
    x = torch.randn(3, 64)
    with pretend_gpu(monkeypatch) as gpu:
        there = x.to(GPU)
        gpu.clear()
        back = dequantize_int4(*quantize_int4(there)), dequantize_int8(*quantize_int8(there))
        assert not gpu.reads and not gpu.uploads
        assert torch.equal(back[0].cpu(), dequantize_int4(*quantize_int4(x)))
