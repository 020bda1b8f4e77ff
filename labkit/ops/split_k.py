"""Memory that split-K kernels share: the counters of arrived blocks (cuda/common/split_k.cuh).

Counters are 0 between launches: the last block to arrive sets its own back. So one buffer a device and stream serves
every launch on a GPU, and a CUDA graph may hold its address: buffers are never freed. Graphs that were captured on one
stream share its buffer, so no two of them may run at the same time.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST = 16384  # counters: more than the tiles of any layer of Qwen3.5-27B

_buffers: dict[tuple[torch.device, int], list[Tensor]] = {}


def arrival_counters(device: torch.device, count: int) -> Tensor:
    """int32 [at least count], all zero when the launch that they are for begins.

    On the simulator, every launch has its own: one that is stopped half-way leaves numbers behind, and launches of
    several threads have no order. In a CUDA graph that needs more than its stream has, so does every launch too, and
    the graph sets them to 0: what a capture allocates is not zero before the graph runs, so nobody else may use it.
    """
    if device.type != "cuda":
        return own_counters(device, count)
    buffers = _buffers.setdefault((device, torch.cuda.current_stream(device).cuda_stream), [])
    if not buffers or buffers[-1].numel() < count:
        if _capturing(device):
            return own_counters(device, count)
        buffers.append(own_counters(device, max(count, FEWEST)))
    return buffers[-1]


def own_counters(device: torch.device, count: int) -> Tensor:
    """Counters that no other launch uses."""
    return torch.zeros(count, dtype=torch.int32, device=device)


def _capturing(device: torch.device) -> bool:
    """Whether calls on the current stream of ``device`` are recorded in a CUDA graph, not run."""
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
