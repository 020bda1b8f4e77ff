"""Rotary embedding as what it is: complex numbers turned by an angle."""

from __future__ import annotations

import pytest
import torch

from labkit.ops.rope import apply_rope, inverse_frequencies, llama3_frequencies, rope_table


@pytest.mark.parametrize(("dim", "rotary_dim"), [(16, 16), (32, 8), (256, 64)])
def test_pairs_turn_as_complex_numbers_and_the_rest_passes(dim: int, rotary_dim: int, seed: int) -> None:
    x, positions = torch.randn(5, 3, dim), torch.randint(0, 5000, (5,))
    half = rotary_dim // 2
    angles = positions.double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    pairs = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    out = apply_rope(x, *rope_table(inverse_frequencies(1e4, rotary_dim), positions))
    torch.testing.assert_close(out[..., :half].double(), turned.real, rtol=0, atol=5e-3)
    torch.testing.assert_close(out[..., half:rotary_dim].double(), turned.imag, rtol=0, atol=5e-3)
    assert torch.equal(out[..., rotary_dim:], x[..., rotary_dim:])


def test_llama3_rescaling_keeps_fast_and_divides_slow_frequencies() -> None:
    freqs = torch.tensor([1.0, 2 * torch.pi / 8192 * 2, 1e-5])
    out = llama3_frequencies(freqs, factor=8, low=1, high=4, original=8192)
    assert out[0] == freqs[0] and out[2] == freqs[2] / 8
    assert freqs[1] / 8 < out[1] < freqs[1]
