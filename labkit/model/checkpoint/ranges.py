"""Are the numbers usable? Checked once, while loading, where the cause can still be named.

A model trained in bfloat16 may hold values that float16 cannot: they turn infinite or 0 in the cast,
and every answer becomes ``!!!!`` without an error. So no cast to float16 goes unchecked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint.report import LoadReport, RangeFinding

HALF_MAX = torch.finfo(torch.float16).max  # 65504

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
    """``tensor`` as float16, or as float32 if an entry would overflow or become 0; the report then names it.

    tensor: float16, bfloat16 or float32, any shape.
    """
    if tensor.dtype == torch.float16:
        return tensor
    parts = tensor.reshape(-1).split(STEP)
    overflowing = sum(int((part.abs() > HALF_MAX).sum()) for part in parts)
    flushing = sum(int(((part.half() == 0) & (part != 0)).sum()) for part in parts)
    if overflowing or flushing:
        report.out_of_range(RangeFinding(name, overflowing, flushing))
        return tensor.float()
    return tensor.half()


def scales_exactly(name: str, scales: Tensor, report: LoadReport) -> Tensor:
    """Scales of an INT4 weight: float16 where that is exact, else float32 (one scale decides 32 to 128 weights)."""
    half = to_half_checked(name, scales, report)
    return half if torch.equal(half.float(), scales.float()) else scales.float()
