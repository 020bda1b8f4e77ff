"""Prefill attention through torch's scaled_dot_product_attention, over keys and values gathered from their pages.

For GPUs from compute capability 8.0 on, which emulate the tensor-core instruction of our kernels, and for which torch
has faster ones. The definition, in fp32, is in attention_torch.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from labkit.ops.capability import capability
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import INT4_KEY_UNIT

LIBRARY_FROM = (8, 0)  # compute capability


def library_is_faster(device: torch.device) -> bool:
    """Whether torch's attention is the default there: on GPUs newer than a V100."""
    return capability(device) >= LIBRARY_FROM


def attend_with_library(q: Tensor, pages: KVPages, batch: PagedBatch, scale: float, gate: Tensor | None) -> Tensor:
    """q: fp16 [T, heads, D] -> fp16 [T, heads, D]; gate as in attention_prefill.

    One call for each sequence, whose lengths are read from the device. K and V become halves first, as in the kernels;
    rotated keys in units of INT4_KEY_UNIT, or the largest would be infinite.
    """
    unit = INT4_KEY_UNIT if pages.format.rotates else 1.0
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for s, (first, behind, length) in enumerate(batch.spans):
        k = dense(pages.k, batch.table[s], length, unit)[:, None]
        v = dense(pages.v, batch.table[s], length)[:, None]
        heads = q[first:behind].transpose(0, 1).unflatten(0, (pages.kv_heads, -1))  # [kv_heads, group, rows, D]
        k, v = (x.expand(-1, heads.shape[1], -1, -1) for x in (k, v))
        mask = causal_lower_right(behind - first, length)
        rows = F.scaled_dot_product_attention(heads, k, v, attn_mask=mask, scale=scale * unit)
        out[first:behind] = rows.flatten(0, 1).transpose(0, 1)
    return out if gate is None else out * gate.sigmoid()


def dense(store: PageStore, table: Tensor, length: int, unit: float = 1.0) -> Tensor:
    """The first ``length`` tokens that a sequence's pages hold: fp16 [kv_heads, length, D].

    unit: what those of quantized pages are divided by first.
    """
    used = table[: -(-length // store.values.shape[2])]
    if store.params is not None:
        tokens = store.gather(used)[:, :length]
        return (tokens if unit == 1 else tokens / unit).half()
    return store.values[used].transpose(0, 1).flatten(1, 2)[:, :length]
