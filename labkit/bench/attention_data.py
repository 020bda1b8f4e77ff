"""Random pages, tables and dense caches on the device, and how torch would make the one from the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.bench.attention_cases import Geometry, kv_format
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.pack import from_nibble_order

STEP8, STEP4, LOWEST4 = 0.02, 0.3, -2.25  # scales of INT8, scales and biases of INT4: values of the order of 1


@dataclass(frozen=True)
class Pool:
    """Pages, and several batches of sequences that share none of them: calls that rotate over the batches."""

    pages: KVPages
    batches: list[PagedBatch]


def random_pool(
    geometry: Geometry, kv: str, *, sequences: int, rows: int, context: int, copies: int, device: torch.device | str
) -> Pool:
    """``copies`` batches of ``sequences`` with ``context`` tokens each, of which the last ``rows`` ask.

    The pages of a sequence are scattered over the pool, as after hours of service. Page 0 is nobody's.
    """
    each = context // PAGE_SIZE
    count = copies * sequences * each
    free = (torch.randperm(count) + 1).tolist()
    tables = [free[i : i + each] for i in range(0, count, each)]
    batches = [
        PagedBatch.of([rows] * sequences, [context] * sequences, tables[i : i + sequences], device)
        for i in range(0, len(tables), sequences)
    ]
    return Pool(random_pages(geometry, kv, count + 1, device), batches)


def random_pages(geometry: Geometry, kv: str, count: int, device: torch.device | str) -> KVPages:
    """Full of numbers of the order of 1; scales alike everywhere."""
    form = kv_format(kv)
    pages = KVPages.zeros(count, geometry.kv_heads, geometry.head_dim, form, device)
    for store in (pages.k, pages.v):
        _fill(store)
    return pages


def _fill(store: PageStore) -> None:
    if store.params is None:
        store.values.normal_()
    elif store.bits == 8:
        store.values.random_(-127, 128)
        store.params.fill_(STEP8)
    else:
        store.values.random_(-(2**31), 2**31)
        store.params[..., 0], store.params[..., 1] = STEP4, LOWEST4


def dense_cache(pages: KVPages, table: Tensor) -> tuple[Tensor, Tensor]:
    """K and V of whole pages in halves: table int32 [S, P] -> two fp16 [S, kv_heads, P * 64, D].

    What an engine without paged kernels does before it calls the library. All of it in halves, and codes in bytes, so
    that it is not slower than it must be in torch.
    """
    return _dense(pages.k, table), _dense(pages.v, table)


def _dense(store: PageStore, table: Tensor) -> Tensor:
    values = store.values[table]
    if store.params is not None:
        values = _halves(values, store.params[table], store.bits)
    return values.transpose(1, 2).flatten(2, 3)


def _halves(values: Tensor, params: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values.half() * params[..., None]
    packed = values.view(torch.uint8).unflatten(-1, (-1, 4))  # the four bytes of a word, low first
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)  # in the order of their places
    natural = from_nibble_order(nibbles).flatten(-2)
    scale, low = params[..., None].unbind(-2)
    groups = natural.unflatten(-1, (params.shape[-2], -1))
    return torch.addcmul(low, groups.half(), scale).flatten(-2)
