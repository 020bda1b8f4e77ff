"""Random weights for timings, made on the device: nothing is quantized, and no value is out of the ordinary."""

from __future__ import annotations

import torch

from labkit.ops.linear_candidates import KernelWeight
from labkit.ops.tuning_table import WeightShape
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import TILE, PackedInt4

SCALE, ZERO = 0.01, 8.0


def random_weights(shape: WeightShape, count: int, device: torch.device | str) -> list[KernelWeight]:
    """``count`` weights of a shape, in the form that its candidates take."""
    return [_random_weight(shape, device) for _ in range(count)]


def weight_bytes(shape: WeightShape) -> int:
    """What one of them takes, without padding: INT4 and INT8 have a half2 or a half for each group."""
    elements = shape.outputs * shape.inputs
    if shape.kind == "half":
        return 2 * elements
    bits, pair = (4, 4) if shape.kind == "int4" else (8, 2)
    return elements * bits // 8 + pair * (elements // shape.group)


def _random_weight(shape: WeightShape, device: torch.device | str) -> KernelWeight:
    if shape.kind == "half":
        return (SCALE * torch.randn(shape.outputs, shape.inputs, device=device)).half()
    if shape.kind == "int8":
        q = torch.randint(-127, 128, (shape.outputs, shape.inputs), dtype=torch.int8, device=device)
        scales = torch.full((shape.outputs, shape.inputs // shape.group), SCALE, dtype=torch.float16, device=device)
        return Int8Weight(q, scales)
    tiles, groups, words = -(-shape.outputs // TILE), shape.inputs // shape.group, TILE + 4 * shape.group
    data = torch.randint(-(2**31), 2**31 - 1, (tiles, groups, words), dtype=torch.int32, device=device)
    pair = torch.tensor([SCALE, ZERO], dtype=torch.float16, device=device)
    data[..., :TILE] = pair.view(torch.int32)
    return PackedInt4(data, shape.outputs, shape.group, "scale_zero")
