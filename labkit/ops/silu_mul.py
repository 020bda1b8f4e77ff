"""SwiGLU's elementwise half (Shazeer 2020, arXiv:2002.05202): silu(gate) * up."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up: [..., 2 I], gate first. Returns silu(gate) * up: [..., I], in the same dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
