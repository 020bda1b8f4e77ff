"""Random quantized weights, and how far a product is off."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.int8 import Int8Weight


def random_int4(rows: int, cols: int, group: int, form: Form) -> Int4Weight:
    """Whole zero points, or biases of either sign."""
    groups = torch.empty(rows, cols // group, 2)
    groups[..., 0] = torch.rand(rows, cols // group) * 0.05 + 0.005
    groups[..., 1] = torch.randint(0, 16, groups.shape[:2]) if form == "scale_zero" else -torch.rand(groups.shape[:2])
    return Int4Weight.from_nibbles(torch.randint(0, 16, (rows, cols), dtype=torch.uint8), groups.half(), form)


def random_int8(rows: int, cols: int, group: int) -> Int8Weight:
    """Every number from -127 to 127, scales of one magnitude."""
    scales = (torch.rand(rows, cols // group) * 0.01 + 0.001).half()
    return Int8Weight(torch.randint(-127, 128, (rows, cols), dtype=torch.int8), scales)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The worst row's 2-norm of the difference over the 2-norm of the reference."""
    return ((ours.double() - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
