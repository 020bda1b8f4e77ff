"""RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467).

y = x / sqrt(mean(x^2) + eps) * w, all in fp32, cast at the end. Qwen3.5 stores its weights zero-centred
(y uses 1 + w): the loader adds the one once, so that every norm here multiplies by its plain weight.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of ``x`` [..., D] by ``weight`` [D] (fp32); returns x's dtype."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def gated_rmsnorm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gated DeltaNet's output norm: rmsnorm(x) * w * silu(gate), norm before gate, plain weight.

    x: [..., D] fp32; gate: [..., D]; weight: [D] fp32. Returns gate's dtype.
    """
    normed = F.rms_norm(x.float(), weight.shape, weight, eps)
    return (normed * F.silu(gate.float())).to(gate.dtype)


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, in fp32 (queries and keys of Gated DeltaNet)."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
