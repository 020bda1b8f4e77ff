"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), rotate-half form, on the first dimensions of a head.

Pairs (j, j + R/2) turn by position * theta^(-2j/R); dimensions from R on pass through. Angles are made in fp32.
Qwen3.5's multi-axis positions reduce to this for text, where all three axes are the token index.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_frequencies(theta: float, rotary_dim: int) -> Tensor:
    """theta^(-2j/R) for j < R/2: fp32 [R/2]."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def llama3_frequencies(freqs: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Llama 3.1's rescaling: wavelengths over original/low divided by factor, under original/high kept, a ramp between.

    freqs: fp32 [R/2]. Returns fp32 [R/2].
    """
    turns = original * freqs / (2 * math.pi)  # full rotations within the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return freqs * (keep + (1 - keep) / factor)


def rope_table(freqs: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of every position and frequency: fp32 [T, 1, R] each (1 stands for the heads).

    Both halves of the first are cos; the second is -sin for the first half and sin for the other, so that
    ``apply_rope`` needs no sign.
    """
    angles = (positions.float()[:, None] * freqs[None, :])[:, None, :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R dimensions of ``x`` [T, heads, D] by a ``rope_table`` [T, 1, R]. Returns x's dtype."""
    rotary_dim = cos.shape[-1]
    rotated, passed = x[..., :rotary_dim].float(), x[..., rotary_dim:]
    partner = rotated.roll(rotary_dim // 2, dims=-1)
    rotated = torch.addcmul(rotated * cos, partner, sin).to(x.dtype)
    return torch.cat((rotated, passed), dim=-1) if passed.shape[-1] else rotated
