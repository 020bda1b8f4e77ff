"""How many multiprocessors a launch can fill."""

from __future__ import annotations

from functools import cache

import torch

V100_PROCESSORS = 80


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; on the simulator those of a V100."""
    return _processors(device.index or 0) if device.type == "cuda" else V100_PROCESSORS


@cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count
