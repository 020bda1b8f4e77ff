"""sparse_scores: every rung against fp64, with pages of every format, shuffled, and NaN where no token is stored."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers.accuracy import Shape
from helpers.paged import random_paged
from torch import Tensor

from labkit.ops import sparse_scores
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import PageStore
from labkit.quant.kv import KVFormat

LOG_TOLERANCE = 4e-3  # of a logarithm of a sum: the products' own rounding, in a logit of up to about 10

SMALL: dict[str, list[Shape]] = {
    # lengths of the sequences, rows of a tile and KV head, KV heads, head, format, of every page the first few keys
    "sparse_scores": [
        ((150, 70), 8, 1, 64, "fp16", False),
        ((64,), 17, 2, 128, "int8", False),
        ((200, 10), 3, 1, 64, "int4", False),
        ((130,), 1, 1, 256, "fp16", True),
        ((70, 129), 40, 1, 64, "int8", True),
        ((128,), 16, 1, 256, "int4", False),
        ((191,), 65, 1, 64, "fp16", False),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "sparse_scores": [
        ((131072,), 48, 2, 256, "fp16", False),
        ((8192, 70, 4097), 48, 2, 256, "int8", False),
        ((16384,), 48, 2, 256, "int4", False),
        ((16384, 100), 384, 2, 256, "fp16", True),
        ((9000,), 24, 3, 64, "fp16", False),
        ((5000, 64, 65), 8, 8, 128, "int8", False),
        ((3000,), 512, 4, 128, "fp16", True),
    ],
}


def check_sparse_scores(rung: str, shape: Shape, device: str) -> None:
    """Tiles ask about all of their sequence's full pages, about fewer, and about none."""
    lengths, rows, heads, dim, name, weighted = shape
    paged = random_paged(lengths, heads, dim, KVFormat.named(name, torch.float16), device)
    store, table = paged.pages.k, paged.batch([1] * len(lengths)).table
    full = [length // PAGE_SIZE for length in lengths]
    tiles = [(s, count) for s, most in enumerate(full) for count in sorted({most, most // 2, 0})]
    sequences, visible = torch.tensor(tiles, dtype=torch.int32, device=device).T.contiguous()
    x = torch.randn(len(tiles), heads, rows, dim, device=device).half()
    x[..., 3] /= 8  # that channel of the keys is large
    weights = _weights(store.values.shape[0], heads, device) if weighted else None
    scale = dim**-0.5
    out = sparse_scores.page_scores(x, store, table, sequences, visible, scale, weights=weights, rung=rung)
    for t, (s, count) in enumerate(tiles):
        wanted = exact_scores(x[t], store, table[s, :count], scale, weights)
        assert bool((out[t, ..., wanted.shape[-1] :] == -torch.inf).all()), "a page was scored that is not visible"
        ours = out[t, ..., : wanted.shape[-1]].double()
        assert bool((ours.isinf() == wanted.isinf()).all()), "what has no weight was counted, or the other way round"
        off = (ours - wanted).nan_to_num().abs().max().item() if count else 0.0
        assert off <= LOG_TOLERANCE, f"a logarithm is off by {off:.1e}, allowed {LOG_TOLERANCE:.1e}"


def _weights(pages: int, heads: int, device: str) -> Tensor:
    weights = torch.randn(pages, heads, PAGE_SIZE, device=device)
    weights[..., 1::8] = -torch.inf
    weights[..., 40:48] = -torch.inf  # a whole segment
    return weights


def exact_scores(x: Tensor, store: PageStore, pages: Tensor, scale: float, weights: Tensor | None) -> Tensor:
    """fp64 for one tile x [kv_heads, rows, D], page by page: [kv_heads, rows, pages or segments]."""
    found = [x.new_empty(*x.shape[:-1], 0, dtype=torch.float64)]
    for page in pages.tolist():
        keys = store.gather(torch.tensor([page], device=x.device)).double()
        scores = torch.einsum("hrd,hkd->hrk", x.double(), keys) * scale
        if weights is None:
            found.append(scores.logsumexp(-1, keepdim=True))
        else:
            heavy = scores + weights[page].double()[:, None]
            found.append(heavy.unflatten(-1, (-1, sparse_scores.SAMPLED_KEYS)).logsumexp(-1))
    return torch.cat(found, dim=-1)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "sparse_scores": (sparse_scores.RUNGS, check_sparse_scores),
}
FOLDERS: dict[str, str] = {}
