"""Paged attention in torch against fp64 on what the pages hold: ragged, shuffled, any dtype, garbage in the pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.paged import exact_attention, random_paged
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import KernelArgumentError
from labkit.ops.attention_decode import attention_decode
from labkit.ops.attention_prefill import attention_prefill
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import PageStore
from labkit.quant.kv import KVFormat

CONTEXTS = (1, 5, 63, 64, 65, 200)
FORMATS = {
    "float32": KVFormat(torch.float32),
    "bfloat16": KVFormat(torch.bfloat16),
    "int8": KVFormat(torch.float32, 8, 8),
    "int4": KVFormat(torch.float32, 4, 4),
    "k8v4": KVFormat(torch.float32, 8, 4),
}


def cleared(paged) -> None:  # type: ignore[no-untyped-def]
    """torch reads whole pages, and relies on what KVPages.write and page 0 promise: zeros behind the last token."""
    for store in (paged.pages.k, paged.pages.v):
        for tensor in (store.values, store.params):
            if tensor is not None and tensor.is_floating_point():
                tensor.nan_to_num_()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 64), (6, 6, 8), (8, 1, 96)])
@pytest.mark.parametrize("op", [attention_decode, attention_prefill])
def test_one_row_each(op, name: str, heads: int, kv_heads: int, dim: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    paged = random_paged(CONTEXTS, kv_heads, dim, FORMATS[name], part=37)
    cleared(paged)
    q, rows = torch.randn(len(CONTEXTS), heads, dim), [1] * len(CONTEXTS)
    expected, _ = exact_attention(q, paged, rows, dim**-0.5)
    torch.testing.assert_close(op(q, paged.pages, paged.batch(rows)).double(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("gated", [False, True])
def test_ragged_rows(name: str, gated: bool, seed: int) -> None:
    lengths, rows = (1, 70, 65, 130, 131), (1, 70, 2, 66, 31)
    paged = random_paged(lengths, 2, 16, FORMATS[name])
    cleared(paged)
    q = torch.randn(sum(rows), 6, 16)
    gate = torch.randn(q.shape) if gated else None
    expected, sums = exact_attention(q, paged, rows, 0.3)
    expected = expected if gate is None else expected * gate.double().sigmoid()
    lse = torch.empty(sum(rows), 6)
    for wanted in (None, lse):
        out = attention_prefill(q, paged.pages, paged.batch(rows), scale=0.3, gate=gate, lse=wanted)
        torch.testing.assert_close(out.double(), expected, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


def test_what_a_batch_refuses(seed: int) -> None:
    for rows, lengths, pages in (
        ([], [], []),
        ([1], [1, 2], [[1]]),
        ([0], [5], [[1]]),
        ([6], [5], [[1]]),
        ([1], [PAGE_SIZE + 1], [[1]]),
        ([1], [5], [[-1]]),
    ):
        with pytest.raises(KernelArgumentError):
            PagedBatch.of(rows, lengths, pages)


@pytest.mark.parametrize("op", [attention_decode, attention_prefill])
def test_cache_faults_are_named(op, seed: int) -> None:  # type: ignore[no-untyped-def]
    paged = random_paged((70,), 2, 16, FORMATS["float32"])
    q, batch = torch.randn(1, 4, 16), paged.batch([1])
    with pytest.raises(KernelArgumentError, match="page 99 of"):
        op(q, paged.pages, PagedBatch.of([1], [70], [[1, 99]]))
    for wrong in (q[0], q[:, :3], q[..., :8], q.repeat(2, 1, 1), "q"):
        with pytest.raises(KernelArgumentError):
            op(wrong, paged.pages, batch)
    with pytest.raises(KernelArgumentError, match="gate"):
        op(q, paged.pages, batch, gate=torch.randn(1, 4, 8))
    with pytest.raises(KernelArgumentError, match="lse"):
        op(q, paged.pages, batch, lse=torch.empty(1, 4, dtype=torch.float64))


def _heads_twice(store: PageStore) -> PageStore:
    values, params = (torch.cat([x, x], dim=1) for x in (store.values, _params(store)))
    return replace(store, values=values, params=params)


def _params(store: PageStore) -> Tensor:
    assert store.params is not None
    return store.params


def _one_byte_off(store: PageStore) -> PageStore:
    room = torch.empty(store.values.numel() + 1, dtype=torch.int8)
    return replace(store, values=room[1:].view(store.values.shape).copy_(store.values))


@pytest.mark.parametrize("op", [attention_decode, attention_prefill])
@pytest.mark.parametrize(
    ("which", "change", "words"),
    [
        ("v", _heads_twice, "pages of values has shape"),
        ("v", lambda store: replace(store, values=store.values[1:]), "pages of values has shape"),
        ("k", lambda store: replace(store, params=_params(store)[:1]), "scales of keys has shape"),
        ("k", lambda store: replace(store, params=None), "8 bits and no scales"),
        ("k", lambda store: replace(store, bits=5), "5 bits and scales"),
        ("k", _one_byte_off, "start at address"),
    ],
)
def test_pages_that_do_not_belong_together_are_refused(op, which, change, words: str, seed: int) -> None:  # type: ignore[no-untyped-def]
    """A kernel would read somebody else's memory."""
    paged = random_paged((70, 3), 2, 64, KVFormat(torch.float16, 8, 8))
    pages = replace(paged.pages, **{which: change(getattr(paged.pages, which))})
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=words):
        op(torch.randn(2, 4, 64).half(), pages, paged.batch([1, 1]))
