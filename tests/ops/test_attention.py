"""Paged attention against fp64 on what the pages hold: ragged, shuffled, any dtype, with garbage in the pool."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labkit.ops.attention import attention_decode, attention_prefill
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages, KVSlots
from labkit.quant.kv import dequantize_int8, quantize_int8

CONTEXTS = (1, 5, 63, 64, 65, 200)
DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def filled(contexts: tuple[int, ...], heads: int, dim: int, dtype: torch.dtype) -> tuple[KVPages, list[list[int]]]:
    """Random K and V of several sequences in shuffled pages of a pool that an earlier owner left full of NaN."""
    counts = [-(-c // PAGE_SIZE) for c in contexts]
    pages = KVPages.zeros(sum(counts) + 3, heads, dim, dtype)
    for tensor in (pages.k, pages.v) if dtype != torch.int8 else (pages.k_scale, pages.v_scale):
        tensor[1:] = float("nan")
    free = (torch.randperm(sum(counts) + 2) + 1).tolist()
    tables = [[free.pop() for _ in range(count)] for count in counts]
    for context, table in zip(contexts, tables, strict=True):
        for part in torch.arange(context).split(37):
            slots = KVSlots.at(torch.tensor(table)[part // PAGE_SIZE], part % PAGE_SIZE)
            pages.write(torch.randn(len(part), heads, dim), torch.randn(len(part), heads, dim), slots)
    return pages, tables


def stored(pages: KVPages, table: list[int], context: int) -> tuple[Tensor, Tensor]:
    """K and V of one sequence as stored, read slot by slot: fp64 [context, heads, dim]."""
    result = []
    for values, scales in ((pages.k, pages.k_scale), (pages.v, pages.v_scale)):
        rows = []
        for t in range(context):
            row = values[table[t // PAGE_SIZE], :, t % PAGE_SIZE].double()
            rows.append(row if scales is None else row * scales[table[t // PAGE_SIZE], :, t % PAGE_SIZE, None].double())
        result.append(torch.stack(rows))
    return result[0], result[1]


def oracle(q: Tensor, k: Tensor, v: Tensor, position: int) -> Tensor:
    """One query [heads, dim] at ``position``, plain softmax in fp64."""
    group = q.shape[0] // k.shape[1]
    k, v = (x[: position + 1].repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("hd,thd->ht", q.double(), k) / q.shape[1] ** 0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 64), (6, 6, 8), (8, 1, 32)])
def test_decode(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, seed: int) -> None:
    pages, tables = filled(CONTEXTS, kv_heads, dim, dtype)
    width = max(map(len, tables))
    table = torch.tensor([t + [0] * (width - len(t)) for t in tables])
    mask = (torch.arange(width * PAGE_SIZE) < torch.tensor(CONTEXTS)[:, None])[:, None, None]
    q = torch.randn(len(CONTEXTS), heads, dim)
    out = attention_decode(q, pages, table, mask)
    for i, context in enumerate(CONTEXTS):
        expected = oracle(q[i], *stored(pages, tables[i], context), context - 1)
        torch.testing.assert_close(out[i].double(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 70), (63, 2), (64, 66), (100, 31)])
def test_prefill(dtype: torch.dtype, start: int, tokens: int, seed: int) -> None:
    context = start + tokens
    pages, [table] = filled((context,), 2, 16, dtype)
    k, v = stored(pages, table, context)
    q = torch.randn(tokens, 6, 16)
    out = attention_prefill(q, pages, torch.tensor(table), start)
    expected = torch.stack([oracle(q[i], k, v, start + i) for i in range(tokens)])
    torch.testing.assert_close(out.double(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 1.0, 300.0, 1e5])
def test_int8_round_trip_is_within_half_a_step(magnitude: float, seed: int) -> None:
    x = torch.randn(50, 3, 64) * magnitude
    x[0, 0, 0] = 50 * magnitude  # an outlier widens the step of its own row only
    q, scale = quantize_int8(x)
    assert ((dequantize_int8(q, scale) - x).abs() <= scale.float()[..., None] * 0.5001).all()
    assert dequantize_int8(*quantize_int8(torch.zeros(2, 8))).abs().max() == 0
