"""attention_prefill: every rung against fp64 on what the pages hold, with shuffled pages and NaN where no token is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers.accuracy import QUANTIZED, Shape, relative_error
from helpers.ops_attention_decode import FORMATS, cleared, exact, strided_gate
from helpers.paged import random_paged
from torch import Tensor

from labkit.device import executor_for
from labkit.ops.attention_prefill import RUNGS, attention_prefill
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat

LSE_ERROR = 2e-3  # absolute
LARGE_CHANNEL = 3  # of random_paged's keys

# tokens before the rows, rows of each sequence, KV heads, query heads of each, D, format, with a gate and sums
SMALL: dict[str, list[Shape]] = {
    "attention_prefill": [
        ((0,), (70,), 1, 2, 64, "fp16", True),  # a second tile of six rows, its pages before the diagonal in full
        ((63, 1, 0), (5, 64, 65), 1, 1, 64, "int4", False),
        ((200,), (1,), 2, 1, 128, "int8", True),
        ((64,), (3,), 1, 3, 128, "k8v4", False),
        ((60,), (6,), 1, 1, 256, "fp16", True),
        ((60,), (6,), 1, 1, 256, "int4", True),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "attention_prefill": [
        *(((n - 1,), (1,), 2, 6, 256, f, False) for n in (1, 63, 64, 65, 1000, 4097) for f in FORMATS),
        *(((0,), (n,), 2, 6, 256, f, True) for n in (63, 64, 65, 1000) for f in FORMATS),
        *(((131072 - 65,), (65,), 2, 6, 256, f, True) for f in FORMATS),
        *(((4000, 900, 1, 0), (97, 100, 64, 1), 2, g, d, "fp16", True) for g in (1, 3, 4, 8) for d in (64, 128, 256)),
        *(((3073,), (1024,), 2, 6, 256, f, True) for f in FORMATS),
        ((100,) * 17, (*range(1, 129, 8), 1), 4, 6, 256, "int8", True),
    ],
}


def steep_queries(rows: int, heads: int, dim: int, pages: KVPages) -> Tensor:
    """Random, as they meet in the pages. Every second row looks where random_paged makes keys large: its scores show
    what the rounding of keys to halves would cost (in INT8 more than LSE_ERROR, on almost any hundred rows).
    """
    q = torch.randn(rows, heads, dim)
    q[1::2, :, LARGE_CHANNEL] *= 8
    return pages.rotated(q).half()


def check_attention_prefill(rung: str, shape: Shape, device: str) -> None:
    before, rows, kv_heads, group, dim, name, extras = shape
    lengths = [context + count for context, count in zip(before, rows, strict=True)]
    paged = random_paged(lengths, kv_heads, dim, KVFormat.named(name, torch.float16), device)
    q = steep_queries(sum(rows), kv_heads * group, dim, paged.pages).to(device)
    if executor_for(q) == "torch":
        cleared(paged)
    scale = 1.1 * dim**-0.5
    gate = strided_gate(q) if extras else None
    lse = torch.empty(q.shape[:2], device=device) if extras else None
    out = attention_prefill(q, paged.pages, paged.batch(rows), scale=scale, gate=gate, lse=lse, rung=rung)
    expected, sums = exact(q, paged, rows, scale)
    relative_error(out, expected if gate is None else expected * gate.double().sigmoid(), QUANTIZED)
    if lse is not None:
        worst = (lse.double() - sums).abs().max().item()
        assert worst <= LSE_ERROR, f"a logarithm of a sum is off by {worst:.1e}, allowed {LSE_ERROR:.1e}"


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "attention_prefill": (RUNGS, check_attention_prefill),
}
FOLDERS: dict[str, str] = {}
