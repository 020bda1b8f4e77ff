"""Memory that split-K kernels share: the counters of arrived blocks (cuda/common/split_k.cuh).

Counters are 0 between launches: the last block to arrive sets its own back. So one buffer a device and stream serves
every launch, and a CUDA graph may hold its address: buffers are never freed.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST = 16384  # counters: more than the tiles of any layer of Qwen3.5-27B

_buffers: dict[tuple[torch.device, int], list[Tensor]] = {}


def arrival_counters(device: torch.device, count: int) -> Tensor:
    """int32 [at least count], all zero between launches of one stream."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    buffers = _buffers.setdefault((device, stream), [])
    if not buffers or buffers[-1].numel() < count:
        buffers.append(torch.zeros(max(count, FEWEST), dtype=torch.int32, device=device))
    return buffers[-1]
