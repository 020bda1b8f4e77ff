"""Sequences in shuffled pages of a pool full of NaN, and attention over them in fp64, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import KVFormat, dequantize_int4, dequantize_int8

FORMATS = ("fp16", "int8", "int4", "k8v4")


@dataclass
class Paged:
    """A pool with the pages of each sequence, and the lengths of the sequences."""

    pages: KVPages
    tables: list[list[int]]
    lengths: Sequence[int]

    def batch(self, rows: Sequence[int]) -> PagedBatch:
        """The newest ``rows`` of each sequence ask."""
        return PagedBatch.of(rows, self.lengths, self.tables, self.pages.k.values.device)


def random_paged(
    lengths: Sequence[int], kv_heads: int, dim: int, kv_format: KVFormat, device: str = "cpu", part: int = 1 << 20
) -> Paged:
    """Random K and V of several sequences, written ``part`` tokens at a time; every other place holds NaN.

    Some channels are much larger than others, as in real keys. Page 0 and the places behind a sequence in its last
    page hold NaN too: nothing may be read there.
    """
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    paged = Paged(KVPages.zeros(sum(counts) + 3, kv_heads, dim, kv_format), _shuffled(counts, sum(counts) + 2), lengths)
    for length, table in zip(lengths, paged.tables, strict=True):
        for positions in torch.arange(length).split(part):
            slots = KVSlots.at(torch.tensor(table)[positions // PAGE_SIZE], positions % PAGE_SIZE)
            k, v = (torch.randn(len(positions), kv_heads, dim).half().float() for _ in range(2))
            k[..., 3] *= 8
            v[..., -1] += 2
            _store(paged.pages, k, v, slots)
    _spoil(paged)
    stores = [_moved(store, device) for store in (paged.pages.k, paged.pages.v)]
    paged.pages = KVPages(*stores, kv_format, dim)
    return paged


def _store(pages: KVPages, k: Tensor, v: Tensor, slots: KVSlots) -> None:
    """By the definition, whatever the executor."""
    pages.k.write(pages.rotated(k), slots)
    pages.v.write(v, slots)


def _shuffled(counts: list[int], pages: int) -> list[list[int]]:
    free = (torch.randperm(pages) + 1).tolist()
    return [[free.pop() for _ in range(count)] for count in counts]


def _spoil(paged: Paged) -> None:
    """NaN wherever no token is stored; in quantized pages the codes are all ones and the scales NaN."""
    for store in (paged.pages.k, paged.pages.v):
        held = torch.zeros(store.values.shape[0], PAGE_SIZE, dtype=torch.bool)
        for length, table in zip(paged.lengths, paged.tables, strict=True):
            for i, page in enumerate(table):
                held[page, : length - i * PAGE_SIZE] = True
        for tensor in (store.values, store.params):
            if tensor is not None:
                filler = float("nan") if tensor.is_floating_point() else -1
                tensor.transpose(1, 2)[~held] = filler


def _moved(store: PageStore, device: str) -> PageStore:
    return PageStore(store.values.to(device), None if store.params is None else store.params.to(device), store.bits)


def stored(store: PageStore, table: list[int], length: int) -> Tensor:
    """K or V of one sequence as stored, read token by token: fp64 [length, kv_heads, D]."""
    rows = []
    for t in range(length):
        place = table[t // PAGE_SIZE], slice(None), t % PAGE_SIZE
        row = store.values[place].cpu()
        if store.params is not None:
            params = store.params[place].cpu()
            row = dequantize_int8(row, params) if store.bits == 8 else dequantize_int4(row, params)
        rows.append(row.double())
    return torch.stack(rows)


def exact_attention(q: Tensor, paged: Paged, rows: Sequence[int], scale: float) -> tuple[Tensor, Tensor]:
    """Plain softmax in fp64 over what the pages hold: [T, heads, D] and the logarithms of the sums [T, heads]."""
    outputs, sums, first = [], [], 0
    for count, length, table in zip(rows, paged.lengths, paged.tables, strict=True):
        group = q.shape[1] // paged.pages.kv_heads
        k, v = (stored(store, table, length) for store in (paged.pages.k, paged.pages.v))
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        for r in range(count):
            seen = length - count + r + 1
            scores = torch.einsum("hd,thd->ht", q[first + r].double().cpu(), k[:seen]) * scale
            outputs.append(torch.einsum("ht,thd->hd", scores.softmax(-1), v[:seen]))
            sums.append(scores.logsumexp(-1))
        first += count
    return torch.stack(outputs).to(q.device), torch.stack(sums).to(q.device)
