"""Are the numbers usable? Checked once, while loading, where the cause can still be named.

A model trained in bfloat16 may hold values that float16 cannot: they turn infinite or 0 in the cast,
and every answer becomes ``!!!!`` without an error. So no cast to float16 goes unchecked.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint.report import LoadReport, RangeFinding

HALF_MAX = torch.finfo(torch.float16).max  # 65504
HALF_ZERO = 2.0**-25  # what is smaller rounds to 0
CHANCE = 10  # real weights crowd around 0 more than a bell curve
ORDINARY = 2.0**-10  # a matrix narrower than this loses digits all over, not only next to 0

# Elements looked at together, so that the masks of a 2 GB embedding do not take another 2 GB.
STEP = 1 << 22


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """Return ``tensor``; raises CheckpointError if it holds NaN or infinity."""
    bad = sum(int(part.numel() - part.isfinite().sum()) for part in tensor.reshape(-1).split(STEP))
    if bad:
        raise CheckpointError(
            f"{name} holds {bad} values that are NaN or infinite.",
            cure="Fetch the file again; if it stays so, the checkpoint is broken at its source.",
        )
    return tensor


def to_half_checked(name: str, tensor: Tensor, report: LoadReport) -> Tensor:
    """``tensor`` as float16, or as float32 if entries would overflow or become 0; the report then names it.

    tensor: float16, bfloat16 or float32, any shape. A matrix may lose as many entries next to 0 as chance puts there
    (see ``_is_chance``): that is named too, but it stays float16, or every large bfloat16 matrix would be widened.
    """
    if tensor.dtype == torch.float16:
        return tensor
    parts = tensor.reshape(-1).split(STEP)
    overflowing = sum(int((part.float().abs() > HALF_MAX).sum()) for part in parts)
    flushing = sum(int(((part.half() == 0) & (part != 0)).sum()) for part in parts)
    if not overflowing and not flushing:
        return tensor.half()
    harmless = not overflowing and tensor.ndim > 1 and _is_chance(flushing, tensor)
    report.out_of_range(RangeFinding(name, overflowing, flushing, kept_half=harmless))
    return tensor.half() if harmless else tensor.float()


def _is_chance(flushing: int, matrix: Tensor) -> bool:
    """Whether a bell curve as wide as this matrix would put about as many entries within 2^-25 of 0.

    Such entries lie far below the rounding of their neighbours; a model does not notice them. More of them, or scales,
    norm weights and whole matrices that small, mean something.
    """
    squares = sum(float(part.float().square().sum()) for part in matrix.reshape(-1).split(STEP))
    deviation = math.sqrt(squares / matrix.numel())
    expected = matrix.numel() * 2 * HALF_ZERO / (max(deviation, ORDINARY) * math.sqrt(2 * math.pi))
    return deviation >= ORDINARY and flushing <= CHANCE * expected


def scales_exactly(name: str, scales: Tensor, report: LoadReport) -> Tensor:
    """Scales of an INT4 weight: float16 where that is exact, else float32 (one scale decides 32 to 128 weights)."""
    half = to_half_checked(name, scales, report)
    return half if torch.equal(half.float(), scales.float()) else scales.float()
