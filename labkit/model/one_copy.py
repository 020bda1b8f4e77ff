"""Several small tensors from the host to a device in one copy: each copy costs as much as launching a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.ops.checks import WIDEST_LOAD


def in_one_copy(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """``tensors``, in CPU memory and of any shapes and dtypes, on ``device``; on the CPU they are what was given.

    They share one piece of memory there, each at a multiple of 16 bytes. The copy starts from page-locked memory, so
    the host goes on while it runs.
    """
    if torch.device(device).type == "cpu":
        return list(tensors)
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    padded = [part for piece in flat for part in (piece, piece.new_zeros(-len(piece) % WIDEST_LOAD))]
    moved = torch.cat(padded).pin_memory().to(device, non_blocking=True)
    result, start = [], 0
    for tensor, piece in zip(tensors, flat, strict=True):
        part = moved[start : start + len(piece)]
        result.append(part.view(tensor.dtype).view(tensor.shape))
        start += len(piece) + -len(piece) % WIDEST_LOAD
    return result
