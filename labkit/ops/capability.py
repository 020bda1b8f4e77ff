"""Which GPU a tensor lies on, as far as the choice of a kernel depends on it."""

from __future__ import annotations

from functools import cache

import torch

V100 = (7, 0)


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU. The simulator stands for a V100."""
    return _capability(device.index or 0) if device.type == "cuda" else V100


def is_v100(device: torch.device) -> bool:
    """Whether mma.m8n8k4 is an instruction of the GPU; newer ones emulate it."""
    return capability(device) == V100


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
