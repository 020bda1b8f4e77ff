"""How near a kernel's result must be to fp64, and inputs that make it hard."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HALF_STEP = 6e-4  # one rounding to fp16 is at most 2^-11 = 4.9e-4 of a value
FP32_SUMS = 1e-5  # long fp32 sums and approximate exponentials
QUANTIZED = 2e-3  # products with dequantized weights that were rounded to fp16, and a result rounded once more

Shape = tuple[Any, ...]


def relative_error(ours: Tensor, exact: Tensor, tolerance: float) -> None:
    """Per row, the 2-norm of the difference over that of the reference; and no element off by four times as much."""
    difference = (ours.double() - exact).abs()
    floor = torch.finfo(torch.float16).smallest_normal  # below it fp16 has fewer digits
    norms = exact.norm(dim=-1).clamp(min=floor * exact.shape[-1] ** 0.5)
    worst = (difference.norm(dim=-1) / norms).max().item()
    assert worst <= tolerance, f"relative error {worst:.2e}, allowed {tolerance:.2e}"
    largest = exact.abs().amax(dim=-1, keepdim=True).clamp(min=floor)
    off = (difference / largest).max().item()
    assert off <= 4 * tolerance, f"an element is off by {off:.2e} of its row's largest, allowed {4 * tolerance:.2e}"


def shifted(x: Tensor, elements: int) -> Tensor:
    """The same numbers, dense, at an address that is ``elements`` further than an allocation's start."""
    room = x.new_empty(x.numel() + elements)[elements:].view(x.shape)
    return room.copy_(x)


def rows(count: int, size: int, device: str) -> Tensor:
    """fp16 rows of very different magnitudes."""
    return (torch.randn(count, size) * 10 ** torch.empty(count, 1).uniform_(-2, 2)).half().to(device)
