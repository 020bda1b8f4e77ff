"""Round to nearest: INT4 and INT8 weights made from dense ones, with a search for the best clipping of every group.

    INT4   s = (high - low) / 15,  z = round(-low / s),  q = round(w / s) + z  in 0..15
    INT8   s = max |w| / 127,                            q = round(w / s)      in -127..127

Shrinking a group's range clips its largest weights and steps more finely through all others. The search tries
the shrinks one by one and keeps, for each group, what leaves the smallest squared error, with the scale rounded to half
as it is stored. It sees only the weights; a quantizer that looks at activations does better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.errors import KernelArgumentError
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import GROUP_SIZES

NO_CLIPPING = (1.0,)
INT4_SHRINKS = tuple(1 - 0.04 * step for step in range(13))  # of the range: 1, which is no clipping, to 0.52
INT8_SHRINKS = INT4_SHRINKS[:4]  # with 254 steps a clipped weight costs more than finer steps give
# Elements that are searched together: some ten fp32 temporaries of this size, 8 MB each, are alive.
BLOCK = 1 << 21
SMALLEST_SCALE = 2.0**-24  # the smallest half above 0
LARGEST_HALF = 65504.0


class Chosen(NamedTuple):
    """Of one block of rows: q as int16 [rows, groups, g], and scale and zero fp32 [rows, groups, 1], as stored."""

    q: Tensor
    scale: Tensor
    zero: Tensor


Ranges = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]  # (low, high, shrink) -> (scale, zero)


def largest_group(inputs: int) -> int | None:
    """The largest of the kernels' group sizes (128, 64, 32) that divides ``inputs``; None if none does."""
    return next((size for size in sorted(GROUP_SIZES, reverse=True) if inputs % size == 0), None)


def to_int4(weight: Tensor, *, group_size: int | None = None, shrinks: tuple[float, ...] = INT4_SHRINKS) -> Int4Weight:
    """``weight`` [N, K] (any float dtype) as an asymmetric INT4 weight, form scale_zero.

    group_size: 32, 64 or 128; None: the largest that divides K. shrinks: the clippings that are tried, none at first.
    Raises KernelArgumentError if K does not divide into groups, or half precision cannot hold a scale: one is too
    large, or all are below its smallest.
    """
    groups = _group_size(weight, group_size)
    _refuse_vanishing(weight, 15)
    packed = torch.empty(weight.shape[0], weight.shape[1] // 2, dtype=torch.uint8, device=weight.device)
    pairs = torch.empty(len(weight), weight.shape[1] // groups, 2, dtype=torch.float16, device=weight.device)
    for rows, block in _blocks(weight, groups):
        chosen = _search(block, _asymmetric, 0, 15, shrinks)
        made = Int4Weight.from_nibbles(
            chosen.q.flatten(1).to(torch.uint8), torch.cat((chosen.scale, chosen.zero), dim=-1).half(), "scale_zero"
        )
        packed[rows], pairs[rows] = made.packed, made.groups
    return Int4Weight(packed, pairs, "scale_zero")


def to_int8(weight: Tensor, *, group_size: int | None = None, shrinks: tuple[float, ...] = INT8_SHRINKS) -> Int8Weight:
    """``weight`` [N, K] (any float dtype) as a symmetric INT8 weight. Arguments and errors as of ``to_int4``."""
    groups = _group_size(weight, group_size)
    _refuse_vanishing(weight, 127)
    q = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), weight.shape[1] // groups, dtype=torch.float16, device=weight.device)
    for rows, block in _blocks(weight, groups):
        chosen = _search(block, _symmetric, -127, 127, shrinks)
        q[rows], scales[rows] = chosen.q.flatten(1).to(torch.int8), chosen.scale.squeeze(-1).half()
    return Int8Weight(q, scales)


def _group_size(weight: Tensor, wanted: int | None) -> int:
    if weight.ndim != 2 or not weight.is_floating_point() or not weight.numel():
        message = f"A weight of shape {list(weight.shape)} and {weight.dtype} cannot be quantized."
        raise KernelArgumentError(message, cure="Give a matrix [N, K] of floats.")
    inputs = weight.shape[1]
    size = largest_group(inputs) if wanted is None else wanted
    if size is None or size not in GROUP_SIZES or inputs % size:
        message = f"{inputs} inputs do not divide into groups of {wanted or '32, 64 or 128'}."
        raise KernelArgumentError(message, cure="Leave this weight in half precision.")
    return size


def _refuse_vanishing(weight: Tensor, steps: int) -> None:
    """Refuse a matrix whose weights all lie below the grid of the smallest scale: most or all would become 0."""
    low, high = (float(end) for end in torch.aminmax(weight))
    if 0 < max(-low, high) < steps * SMALLEST_SCALE:
        message = "The weight is so small that its scales would vanish in half precision."
        raise KernelArgumentError(message, cure="Leave this weight as it is.")


def _blocks(weight: Tensor, group_size: int) -> list[tuple[slice, Tensor]]:
    """(rows, weights of them [rows, groups, g] as they are), so many rows at a time that temporaries stay small."""
    step = max(1, BLOCK // weight.shape[1])
    parts = [slice(start, start + step) for start in range(0, len(weight), step)]
    return [(rows, weight[rows].unflatten(1, (-1, group_size))) for rows in parts]


def _asymmetric(low: Tensor, high: Tensor, shrink: float) -> tuple[Tensor, Tensor]:
    scale = _stored((high - low) * (shrink / 15))
    return scale, (-low * shrink / scale).round_().clamp_(0, 15)


def _symmetric(low: Tensor, high: Tensor, shrink: float) -> tuple[Tensor, Tensor]:
    scale = _stored(torch.maximum(-low, high) * (shrink / 127))
    return scale, torch.zeros_like(scale)


def _stored(scale: Tensor) -> Tensor:
    """A scale as half precision keeps it; never 0, so that a group of zeros divides to zeros."""
    return scale.half().float().clamp_(min=SMALLEST_SCALE)


def _search(weights: Tensor, ranges: Ranges, lowest: int, highest: int, shrinks: tuple[float, ...]) -> Chosen:
    """The q, scale and zero of each group [rows, groups, g] with the least squared error."""
    w = weights.float()
    # 0 lies in every range: it is what most weights are near, and the zero point must be a nibble.
    low, high = w.amin(-1, keepdim=True).clamp_(max=0), w.amax(-1, keepdim=True).clamp_(min=0)
    best, least = _rounded(w, *ranges(low, high, shrinks[0]), lowest, highest), None
    if not bool((best.scale <= LARGEST_HALF).all()):
        message = "The weight has groups whose scale would not fit half precision."
        raise KernelArgumentError(message, cure="Leave this weight as it is.")
    for shrink in shrinks[1:]:
        least = _error(w, best) if least is None else least
        tried = _rounded(w, *ranges(low, high, shrink), lowest, highest)
        error = _error(w, tried)
        better = error < least
        least = torch.where(better, error, least)
        best = Chosen(*(torch.where(better, new, old) for new, old in zip(tried, best, strict=True)))
    return best


def _rounded(w: Tensor, scale: Tensor, zero: Tensor, lowest: int, highest: int) -> Chosen:
    q = (w / scale).round_().add_(zero).clamp_(lowest, highest)
    return Chosen(q.to(torch.int16), scale, zero)


def _error(w: Tensor, chosen: Chosen) -> Tensor:
    """fp32 [rows, groups, 1]."""
    return (chosen.q - chosen.zero).mul_(chosen.scale).sub_(w).square_().sum(-1, keepdim=True)


QUANTIZERS: dict[str, Callable[[Tensor], Int4Weight | Int8Weight]] = {"int4": to_int4, "int8": to_int8}
"""By the names that settings have."""
