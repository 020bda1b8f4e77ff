"""A few rows that stand for many: farthest-first sampling (Gonzalez 1985, k-centre clustering).

Start with the row farthest from the mean, then take again and again the row farthest from all that were taken. What is
unlike everything else, which a mean would bury, is taken early; what is left is near to something that was taken, and a
dot product with it is off by no more than the distance allows.

The keys of a page are sampled again for every chunk that looks back at it, and nothing is kept. That is 20 operations
for an element of a key, against 4 for it and each row of a query head: with 6 query heads on a KV head and chunks of
2,048 rows 0.04 % of dense attention's operations at any length (counted), too little for a store beside the pages. They
are no tensor-core products, though, but passes over the keys in fp32; their time on a GPU has not been measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.device import executor_for
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import PageStore
from labkit.ops.sparse_scores import SAMPLED_KEYS, SEGMENTS, DividedKeys
from labkit.quant.kv import INT4_KEY_UNIT

PAGES_AT_A_TIME = 256  # whose keys are dequantized together: 17 MB in fp32 for a KV head of 256


@dataclass(frozen=True, eq=False)
class KeySamples:
    """Eight keys of every page of some sequences, packed into pages of 64: eight real pages each.

    keys: values [S * P', kv_heads, 64, D], fp16 for the kernels, P' = ceil(P / 8); weights: fp32 [S * P', kv_heads,
    64], the logarithm of how many keys each stands for (-inf: none); table: int32 [S, P'].
    """

    keys: DividedKeys
    weights: Tensor
    table: Tensor


def farthest_first(x: Tensor, count: int) -> Tensor:
    """Which ``count`` rows of x [..., N, D] stand for all: int64 [..., count]. Equal distances: the first."""
    return _spread(x, count)[0]


def _spread(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """These rows [..., count], and for every row the place among them of the nearest [..., N]."""
    x = x.float() - x.float().mean(dim=-2, keepdim=True)
    lengths = x.square().sum(-1)
    chosen = [lengths.argmax(-1, keepdim=True)]
    near = _squares(x, lengths, chosen[0])
    nearest = torch.zeros_like(near, dtype=torch.int64)
    for place in range(1, count):
        chosen.append(near.argmax(-1, keepdim=True))
        distance = _squares(x, lengths, chosen[-1])
        nearest = torch.where(distance < near, place, nearest)
        near = torch.minimum(near, distance)
    return torch.cat(chosen, dim=-1), nearest


def _squares(x: Tensor, lengths: Tensor, row: Tensor) -> Tensor:
    """The squared distance of all rows of x [..., N, D] from row [..., 1] of them: [..., N].

    |a - b|^2 = |a|^2 + |b|^2 - 2 a . b reads x once. What it loses where a and b are near decides nothing: the farthest
    row is looked for, and a row that is about as near to two samples may count for either.
    """
    return lengths + lengths.gather(-1, row) - 2 * (x @ rows_at(x, row).mT)[..., 0]


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """Rows [..., count, D] of x [..., N, D] by their numbers [..., count]."""
    return x.gather(-2, index[..., None].expand(*index.shape, x.shape[-1]))


def sample_keys(keys: PageStore, table: Tensor, full_pages: Sequence[int]) -> KeySamples:
    """Samples of the first full_pages[s] pages of each sequence, all of whose keys are written.

    table: int32 [S, P]. For kernels the samples are halves; those of rotated keys are divided, so that all are finite.
    """
    width = max(1, -(-max(full_pages) // SEGMENTS))
    shape = (len(full_pages), keys.values.shape[1], width * SEGMENTS, SAMPLED_KEYS)
    dim = keys.values.shape[-1] * (8 if keys.bits == 4 else 1)
    dtype = torch.float32 if executor_for(keys.values) == "torch" else torch.float16
    unit = INT4_KEY_UNIT if keys.bits == 4 and dtype == torch.float16 else 1.0
    samples = torch.zeros(*shape, dim, dtype=dtype, device=table.device)
    weights = torch.full(shape, -torch.inf, device=table.device)
    for s, count in enumerate(full_pages):
        for first in range(0, count, PAGES_AT_A_TIME):
            places = slice(first, min(first + PAGES_AT_A_TIME, count))
            found, sizes = _samples(keys, table[s, places])
            samples[s, :, places], weights[s, :, places] = (found / unit).to(dtype), sizes.log()
    return _packed(samples, weights, width, unit)


def _samples(keys: PageStore, pages: Tensor) -> tuple[Tensor, Tensor]:
    """Eight keys of each page [kv_heads, pages, 8, D], and how many each stands for [kv_heads, pages, 8]."""
    k = keys.gather(pages).unflatten(1, (-1, PAGE_SIZE))
    chosen, nearest = _spread(k, SAMPLED_KEYS)
    sizes = torch.zeros(chosen.shape, device=k.device)
    return rows_at(k, chosen), sizes.scatter_add_(-1, nearest, torch.ones_like(nearest, dtype=torch.float32))


def _packed(samples: Tensor, weights: Tensor, width: int, unit: float) -> KeySamples:
    """[S, kv_heads, P' * 8, 8, D] as pages."""
    sequences = len(samples)
    values, sizes = (x.unflatten(2, (width, SEGMENTS)).transpose(1, 2).flatten(3, 4) for x in (samples, weights))
    table = torch.arange(sequences * width, dtype=torch.int32, device=samples.device).view(sequences, width)
    store = DividedKeys(values.flatten(0, 1).contiguous(), None, 16, unit)
    return KeySamples(store, sizes.flatten(0, 1).contiguous(), table)
