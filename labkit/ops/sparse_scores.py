"""How much attention rows of queries pay to each page, without values: what sparse prefill chooses pages by.

    out[t, h, r, p] = log sum over the keys j of page p of exp(scale x[t, h, r] . k[j] + w[j])

t is a tile, h a KV head, r a row of the tile's query heads in that head's group. With weights w a page is divided into
eight segments of 8 keys, each with a result of its own: labkit/ops/sparse_keys.py puts a few keys of a real page there,
weighted by how many others they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from labkit.device import Kernel, Out, executor_for
from labkit.errors import KernelArgumentError
from labkit.ops.attention_checks import store_tensors
from labkit.ops.checks import Tensors, aligned, chosen_rung, named_sizes, number
from labkit.ops.layout import HEAD_DIMS, PAGE_SIZE
from labkit.ops.paged_kv import PageStore
from labkit.quant.kv import INT4_KEY_UNIT

RUNGS = ["1_warp_per_row", "2_tensor_cores"]
SAMPLED_KEYS = 8  # that stand for a page: a segment
SEGMENTS = PAGE_SIZE // SAMPLED_KEYS
THREADS = 128  # of a block, as the sources say
KEYS_AT_A_TIME = 4096  # of the definition in torch: it bounds its memory


@dataclass(frozen=True, eq=False)
class DividedKeys(PageStore):
    """Keys of 16 bits, of which 1 stands for ``unit``: as halves rotated keys might be infinite."""

    unit: float = 1.0

    def gather(self, table: Tensor) -> Tensor:
        """Read whole pages: table [..., P] -> the keys in fp32 [..., kv_heads, P * 64, D]."""
        return super().gather(table) * self.unit


def page_scores(
    x: Tensor,
    keys: PageStore,
    table: Tensor,
    sequences: Tensor,
    visible: Tensor,
    scale: float,
    *,
    weights: Tensor | None = None,
    rung: str | None = None,
) -> Tensor:
    """x: [tiles, kv_heads, rows, D], fp16 for the kernels; keys of 16, 8 or 4 bits; table: int32 [S, P], pages in them.

    sequences, visible: int32 [tiles], the row of the table that a tile asks about, and how many of its pages, whose 64
    keys must all be written. weights: fp32 [pages, kv_heads, 64].
    Returns fp32 [tiles, kv_heads, rows, P], or [.., 8 P] with weights; -inf behind the visible pages.
    Raises KernelArgumentError for what the kernels do not take.
    """
    if executor_for(x, keys.values) == "torch":
        return reference(x, keys, table, sequences, visible, scale, weights)
    rung, factor = chosen_rung("sparse_scores", rung, RUNGS), number("sparse_scores", "scale", scale)
    sizes = _sizes(x, keys, table, sequences, visible, weights)
    tiles, heads, rows, dim, width = (sizes[name] for name in ("tiles", "kv_heads", "rows", "D", "P"))
    segments = SEGMENTS if weights is not None else 1
    out = torch.empty(tiles, heads, rows, width * segments, dtype=torch.float32, device=x.device)
    if out.numel():
        params, unit = _divided(keys)
        tensors = [aligned(x), keys.values, params, weights, table, sequences, visible, Out(out)]
        kernel = _kernel(rung, dim, keys.bits, weights is not None)
        kernel.launch((width, heads, tiles), THREADS, [*tensors, heads, rows, width, factor * unit])
    return out


def _divided(keys: PageStore) -> tuple[Tensor | None, float]:
    """The scales with which the kernels, which make halves of keys, find finite ones, and what 1 of these stands for.

    A step or minimum of INT4 below 2^-10 is rounded then, by 2^-21 at most: a 16th of the finest step.
    """
    if isinstance(keys, DividedKeys):
        return keys.params, keys.unit
    if keys.bits == 4 and keys.params is not None:
        return keys.params / INT4_KEY_UNIT, INT4_KEY_UNIT
    return keys.params, 1.0


def reference(
    x: Tensor,
    keys: PageStore,
    table: Tensor,
    sequences: Tensor,
    visible: Tensor,
    scale: float,
    weights: Tensor | None = None,
) -> Tensor:
    """The definition in torch, fp32, some pages at a time."""
    segments = SEGMENTS if weights is not None else 1
    tiles, heads, rows, _ = x.shape
    out = torch.full((tiles, heads, rows, table.shape[1] * segments), -torch.inf, device=x.device)
    for s in sequences.unique().tolist():
        mine = (sequences == s).nonzero()[:, 0]
        for first in range(0, int(visible[mine].max()), KEYS_AT_A_TIME // PAGE_SIZE):
            places = slice(first, min(first + KEYS_AT_A_TIME // PAGE_SIZE, int(visible[mine].max())))
            k = keys.gather(table[s, places])
            scores = torch.einsum("thrd,hkd->thrk", x[mine].float(), k) * scale
            if weights is not None:
                scores += weights[table[s, places]].transpose(0, 1).flatten(1)[:, None]
            found = scores.unflatten(-1, (-1, PAGE_SIZE // segments)).logsumexp(-1)
            out[mine, ..., first * segments : places.stop * segments] = found
    page = torch.arange(out.shape[-1], device=x.device) // segments
    return out.masked_fill(page >= visible[:, None, None, None], -torch.inf)


def macros(head_dim: int, k_bits: int, weighted: bool) -> dict[str, int]:
    """How the kernels are compiled."""
    return {"HEAD_DIM": head_dim, "K_BITS": k_bits, "SEGMENT": SAMPLED_KEYS if weighted else PAGE_SIZE}


@cache
def _kernel(rung: str, head_dim: int, k_bits: int, weighted: bool) -> Kernel:
    return Kernel("sparse_scores", rung, "sparse_scores", macros(head_dim, k_bits, weighted))


def _sizes(
    x: Tensor, keys: PageStore, table: Tensor, sequences: Tensor, visible: Tensor, weights: Tensor | None
) -> dict[str, int]:
    """The sizes by name. Raises KernelArgumentError."""
    dim = x.shape[-1] if x.dim() else 0
    if dim not in HEAD_DIMS:
        built = ", ".join(map(str, HEAD_DIMS))
        message = f"sparse_scores: heads have {dim} elements; kernels are built for {built}."
        raise KernelArgumentError(message, cure="Use the executor torch.")
    given: Tensors = {
        "x": (x, torch.float16, ("tiles", "kv_heads", "rows", "D")),
        **store_tensors("sparse_scores", "keys", keys, dim),
        "table": (table, torch.int32, ("S", "P")),
        "sequences": (sequences, torch.int32, ("tiles",)),
        "visible": (visible, torch.int32, ("tiles",)),
    }
    if weights is not None:
        given["weights"] = (weights, torch.float32, ("pages", "kv_heads", PAGE_SIZE))
    return named_sizes("sparse_scores", given)
