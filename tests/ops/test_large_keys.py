"""INT4 keys that their rotation makes larger than a half: what becomes halves is divided, and the scale multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_attention_decode import paged_with
from helpers.ops_sparse import exact_scores
from helpers.paged import Paged
from torch import Tensor

from labkit.device import use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import simulated_with
from labkit.ops.attention_prefill_sdpa import attend_with_library, dense
from labkit.ops.attention_torch import causal_mask
from labkit.ops.paged_kv import PageStore
from labkit.ops.sparse_keys import sample_keys
from labkit.ops.sparse_prefill import choose_pages
from labkit.ops.sparse_scores import RUNGS, page_scores
from labkit.ops.sparse_settings import SparseSettings
from labkit.quant.kv import INT4_KEY_UNIT
from labkit.sim.options import Options

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
LARGEST_HALF = 65504
ROUNDING, LOST = 2.0**-11, 2.0**-21  # of an element: as part of itself, and of one near 0
FP32_SUMS = 1e-5  # of the products' sizes, and of a logarithm


def large(tokens: int, dim: int) -> Tensor:
    """Keys whose elements are all alike, so that the rotation puts sqrt(D) of them into one: fp32 [tokens, 1, D]."""
    return (1e4 + torch.randn(tokens, 1, dim)).half().float()


def paged_keys(k: Tensor) -> Paged:
    return paged_with(k, torch.randn(k.shape), "int4", rotated=True)


@contextmanager
def simulated() -> Iterator[None]:
    with use_executor("sim"), simulated_with(Options(counters=False)):
        yield


def assert_rounded_once(halves: Tensor, unit: float, keys: Tensor) -> None:
    assert halves.dtype == torch.float16 and halves.isfinite().all()
    assert ((halves.double() * unit - keys).abs() <= ROUNDING * keys.abs() + LOST).all()


# --- torch's attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_through_the_library(dim: int, seed: int) -> None:
    """Against fp64 with the keys that it gets: their own rounding moves scores of thousands."""
    paged, tokens, rows = paged_keys(large(130, dim)), 130, 70
    q = paged.pages.rotated(0.1 * torch.randn(rows, 2, dim)).half()  # or fp32 is too coarse for scores
    k, v = (x[0, :tokens].double() for x in paged.pages.gather(torch.tensor(paged.tables[0])))
    assert k.max() > LARGEST_HALF
    halves = dense(paged.pages.k, torch.tensor(paged.tables[0]), tokens, INT4_KEY_UNIT)[0]
    assert_rounded_once(halves, INT4_KEY_UNIT, k)
    scores = torch.einsum("rhd,td->hrt", q.double(), halves.double() * INT4_KEY_UNIT) * dim**-0.5
    weights = scores.masked_fill(~causal_mask(rows, tokens), -torch.inf).softmax(-1)
    out = attend_with_library(q, paged.pages, paged.batch([rows]), dim**-0.5, None)
    relative_error(out, torch.einsum("hrt,td->rhd", weights, v), QUANTIZED)


@pytest.mark.parametrize("size", [1e-6, 1e-4, 1.0, 6e4])
def test_what_halves_of_divided_keys_lose(size: float, seed: int) -> None:
    """Small ones too: a 16th of the finest step of INT4."""
    paged = paged_keys((size * torch.rand(70, 1, 256)).half().float())
    table = torch.tensor(paged.tables[0])
    halves = dense(paged.pages.k, table, 70, INT4_KEY_UNIT)
    assert_rounded_once(halves, INT4_KEY_UNIT, paged.pages.k.gather(table)[:, :70].double())


def test_no_pair_passes_the_largest_half() -> None:
    """The largest step, minimum and code that there are."""
    words = torch.full((1, 1, 64, 8), -1, dtype=torch.int32)
    store = PageStore(words, torch.full((1, 1, 64, 1, 2), float(LARGEST_HALF)).half(), 4)
    table = torch.zeros(1, dtype=torch.int32)
    assert dense(store, table, 64, INT4_KEY_UNIT).isfinite().all()
    assert dense(store, table, 64, INT4_KEY_UNIT / 2).isinf().all()


# --- the choice of pages --------------------------------------------------------------------------------------------


def assert_near(
    scores: Tensor, x: Tensor, paged: Paged, pages: Tensor, keys: PageStore, weights: Tensor | None
) -> None:
    """As near to fp64 as keys as halves can be; scores, x: [kv_heads, rows, ..]; pages: of ``keys``."""
    scale = x.shape[-1] ** -0.5
    expected = exact_scores(x, keys, pages, scale, weights)[..., : scores.shape[-1]]
    sizes = paged.pages.k.gather(torch.tensor(paged.tables[0])).abs().amax(1)[0].double()  # of each element
    allowed = (ROUNDING + FP32_SUMS) * (x.double().abs() @ sizes) * scale
    assert scores.isfinite().all() and expected.isfinite().all()
    assert ((scores.double() - expected).abs() <= allowed[..., None] + FP32_SUMS * expected.abs()).all()


@needs_nvrtc
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dim", [64, 256])
def test_scores_of_pages(dim: int, rung: str, seed: int) -> None:
    paged, ones = paged_keys(large(128, dim)), torch.ones(1, dtype=torch.int32)
    x, table = paged.pages.rotated(torch.randn(1, 1, 9, dim)).half(), paged.batch([1]).table
    with simulated():
        out = page_scores(x, paged.pages.k, table, 0 * ones, 2 * ones, dim**-0.5, rung=rung)
    assert_near(out[0], x[0], paged, table[0], paged.pages.k, None)


@needs_nvrtc
@pytest.mark.parametrize("rung", RUNGS)
def test_scores_of_samples(rung: str, seed: int) -> None:
    """On kernels and in torch, whatever they were made for."""
    paged, ones = paged_keys(large(128, 64)), torch.ones(1, dtype=torch.int32)
    x, table = paged.pages.rotated(torch.randn(1, 1, 9, 64)).half(), paged.batch([1]).table
    with simulated():
        samples = sample_keys(paged.pages.k, table, [2])
        given = x, samples.keys, samples.table, 0 * ones, ones, 64**-0.5
        out = page_scores(*given, weights=samples.weights, rung=rung)
    in_torch = page_scores(*given, weights=samples.weights)
    of_pages = paged.pages.k.gather(table[0, :2].long()).unflatten(1, (2, 64))[0].double()
    for segment in range(2):
        found = samples.keys.values[0, 0, 8 * segment : 8 * segment + 8]
        distances = torch.cdist(found.double() * samples.keys.unit, of_pages[segment])
        assert (distances.amin(-1) <= ROUNDING * of_pages.norm(dim=-1).max()).all(), "a sample is no key of its page"
        assert_rounded_once(found, samples.keys.unit, of_pages[segment, distances.argmin(-1)])
    for scores in (out, in_torch):
        assert_near(scores[0, ..., :2], x[0], paged, samples.table[0], samples.keys, samples.weights)
        assert scores[0, ..., 2:].isneginf().all()


def test_samples_for_torch_stay_as_they_are(seed: int) -> None:
    paged = paged_keys(large(64, 64))
    samples = sample_keys(paged.pages.k, paged.batch([1]).table, [1])
    assert samples.keys.unit == 1 and samples.keys.values.dtype == torch.float32
    assert samples.keys.values.max() > LARGEST_HALF


@needs_nvrtc
def test_a_page_that_is_looked_for_is_found(seed: int) -> None:
    """Rotated, elements from 64 on are ordinary; every row looks for a key in them that lies in page 3 of 10."""
    turned = large(640, 128)
    turned = paged_keys(turned).pages.rotated(turned)
    q = 0.05 * torch.randn(64, 2, 128)
    wanted = torch.randn(64).sign()
    turned[3 * 64 + 17, 0, 64:] = 4 * wanted
    q[..., 0], q[..., 64:] = 0, wanted
    paged = paged_with(turned, torch.randn(640, 1, 128), "int4", rotated=False)
    settings = SparseSettings(mass=0.5, sink=1, recent=1, threshold=64)
    with simulated():
        kept = choose_pages(q.half(), paged.pages, paged.batch([64]), settings)
    for head in range(2):
        assert 3 in kept.index[0, head, : int(kept.count[0, head])].tolist()
