"""Round to nearest: real numbers onto a grid of 16 levels, for each group of inputs.

    s = (high - low) / 15, in half;   z = round(-low / s);   q = clamp(round(w / s) + z, 0, 15);   w' = (q - z) s

low <= 0 <= high are the ends of the group, times ``keep`` where the range is clipped: 0 always lies on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.errors import UnsupportedModelError
from labkit.quant.int4 import Int4Weight

LEVELS = 15
SMALLEST_SCALE = 2.0**-24  # of a half
ROWS = 1 << 21  # elements rounded at a time: what passes between the operations stays in a cache


@dataclass(frozen=True)
class Grid:
    """The grid of every group: scale and zero point, fp32 [N, K / g, 1], the scale a value that half holds."""

    scale: Tensor
    zero: Tensor

    @staticmethod
    def of(groups: Tensor, keep: Tensor | float = 1.0) -> Grid:
        """For fp32 [N, K / g, g]; keep: share of the range that the grid spans, a number or fp32 [N, K / g, 1]."""
        low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
        low, high = low * keep, high * keep
        scale = ((high - low) / LEVELS).half().float().clamp(min=SMALLEST_SCALE)
        return Grid(scale, (-low / scale).round().clamp(0, LEVELS))

    def nearest(self, groups: Tensor) -> Tensor:
        """The numbers q of fp32 [N, K / g, g]: 0 to 15, as fp32."""
        return (groups / self.scale).round_().add_(self.zero).clamp_(0, LEVELS)

    def rounded(self, groups: Tensor) -> Tensor:
        """The values on the grid that are nearest: fp32 [N, K / g, g]."""
        return self.nearest(groups).sub_(self.zero).mul_(self.scale)


def grouped(weight: Tensor, group_size: int) -> Tensor:
    """[N, K] as [N, K / g, g]."""
    return weight.unflatten(-1, (-1, group_size))


def rounded(weight: Tensor, group_size: int) -> Tensor:
    """fp32 [N, K] -> the nearest values that 4 bits hold, fp32 [N, K]."""
    result = torch.empty_like(weight)
    step = max(1, ROWS // weight.shape[1])
    for start in range(0, len(weight), step):
        groups = grouped(weight[start : start + step], group_size)
        result[start : start + step] = Grid.of(groups).rounded(groups).flatten(1)
    return result


def quantize(name: str, weight: Tensor, group_size: int, keep: Tensor | float = 1.0) -> Int4Weight:
    """fp32 [N, K] as INT4 of the form scale_zero. keep: as of ``Grid.of``.

    Raises UnsupportedModelError if a scale is beyond half, or every weight below what half's smallest scale can tell
    from 0; ``name`` is the module that the message names.
    """
    cure = "Leave it in 16 bits with --skip."
    if 0 < float(weight.abs().max()) < LEVELS * SMALLEST_SCALE:
        raise UnsupportedModelError(f"{name} has weights too small for half-precision scales.", cure=cure)
    groups = grouped(weight, group_size)
    grid = Grid.of(groups, keep)
    if not bool(grid.scale.isfinite().all()):
        raise UnsupportedModelError(f"{name} has weights too large for half-precision scales.", cure=cure)
    q = grid.nearest(groups).to(torch.uint8).flatten(1)
    pairs = torch.cat((grid.scale, grid.zero), dim=-1).half()
    return Int4Weight.from_nibbles(q, pairs, "scale_zero")
