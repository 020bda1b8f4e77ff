"""INT8 quantization of keys and values: symmetric, one half-precision scale per token and head."""

from __future__ import annotations

import torch
from torch import Tensor


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: [..., D] -> (int8 [..., D], fp16 scale [...]), x ~ q * scale, |error| <= scale / 2 (plus its fp16 rounding).

    The division uses the scale as stored, so its rounding to half is not paid twice. Below 2^-17 a half has so few
    bits left that the largest element would no longer fit 127 steps: smaller rows keep that step.
    """
    peak = x.float().abs().amax(dim=-1)
    scale = (peak / 127).clamp(min=2.0**-17, max=65504.0).to(torch.float16)
    q = (x.float() / scale.float()[..., None]).round().clamp(-127, 127)
    return q.to(torch.int8), scale


def dequantize_int8(q: Tensor, scale: Tensor) -> Tensor:
    """The inverse: int8 [..., D], fp16 [...] -> fp32 [..., D]."""
    return q.float() * scale.float()[..., None]
