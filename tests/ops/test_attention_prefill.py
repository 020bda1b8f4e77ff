"""attention_prefill: what the common checks of rungs leave open: kept pages, odd inputs, dispatch, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_attention_decode import cleared, exact
from helpers.paged import FORMATS, Paged, random_paged
from torch import Tensor

from labkit.device import sources, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches, simulated_with
from labkit.errors import KernelArgumentError
from labkit.ops import attention_prefill as module
from labkit.ops.attention_prefill import RUNGS, attention_prefill, macros
from labkit.ops.attention_prefill_sdpa import attend_with_library, library_is_faster
from labkit.ops.kept_pages import KeptPages, tile_pages
from labkit.ops.ladders import LADDERS
from labkit.ops.paged_batch import PagedBatch
from labkit.quant.kv import KVFormat
from labkit.sim.options import Options

needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
QUIET = Options(counters=False)
HALF = KVFormat(torch.float16)


def simulated(
    q: Tensor, paged: Paged, batch: PagedBatch, kept: KeptPages | None = None, rung: str | None = None
) -> Tensor:
    with use_executor("sim"), simulated_with(QUIET):
        return attention_prefill(q, paged.pages, batch, kept=kept, rung=rung)


def random_lists(batch: PagedBatch, heads: int) -> KeptPages:
    """Some pages before each tile's own, other ones for every head; what stands behind them is no page."""
    tiles = tile_pages(batch)
    index = torch.full((len(tiles), heads, max(end for _, end in tiles)), 9999, dtype=torch.int32)
    count = torch.zeros(len(tiles), heads, dtype=torch.int32)
    for tile, (first, end) in enumerate(tiles):
        for head in range(heads):
            chosen = [*(torch.rand(first) < 0.5).nonzero()[:, 0].tolist(), *range(first, end)]
            index[tile, head, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
            count[tile, head] = len(chosen)
    return KeptPages(index, count)


# --- kept pages -----------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("rung", RUNGS)
def test_kept_pages(rung: str, seed: int) -> None:
    lengths, rows = ([200], [2]) if rung == RUNGS[0] else ([330, 70], [70, 3])  # that one takes long here
    paged = random_paged(lengths, 1, 64, HALF)
    batch, q = paged.batch(rows), torch.randn(sum(rows), 2, 64).half()
    kept = random_lists(batch, 2)
    ours = simulated(q, paged, batch, kept, rung)
    cleared(paged)
    relative_error(ours, attention_prefill(q, paged.pages, batch, kept=kept).double(), QUANTIZED)


@needs_nvrtc
@pytest.mark.parametrize("rung", RUNGS)
def test_with_every_page_kept_the_bits_are_the_same(rung: str, seed: int) -> None:
    lengths, rows = ([65], [2]) if rung == RUNGS[0] else ([200, 64], [66, 5])
    paged = random_paged(lengths, 1, 64, HALF)
    batch, q = paged.batch(rows), torch.randn(sum(rows), 2, 64).half()
    plain = simulated(q, paged, batch, None, rung)
    assert torch.equal(simulated(q, paged, batch, KeptPages.all_of(batch, 2), rung), plain)


def test_lists_of_every_page() -> None:
    batch = PagedBatch.of([70, 1], [200, 64], [[3, 1, 2, 5], [4]])
    kept = KeptPages.all_of(batch, 3)
    assert kept.count.tolist() == [[4] * 3, [4] * 3, [1] * 3]  # rows 130 .. 193 and 194 .. 199, row 63
    assert kept.index.shape == (3, 3, 4) and kept.index[0, 0].tolist() == [0, 1, 2, 3]
    kept.check("op", batch, 3)


BATCH = PagedBatch.of([64], [256], [[3, 1, 2, 5]])
LISTS = KeptPages(torch.tensor([[[0, 3, 7]]], dtype=torch.int32), torch.tensor([[2]], dtype=torch.int32))


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (replace(LISTS, index=LISTS.index.long()), "index is int64"),
        (replace(LISTS, index=LISTS.index[0]), r"index is int32 \[1, 3\]"),
        (replace(LISTS, count=LISTS.count[:, 0]), r"count is int32 \[1\]"),
        (replace(LISTS, count=LISTS.count.repeat(1, 2)), r"count is int32 \[1, 2\]"),
        (replace(LISTS, count=LISTS.count + 1), "do not fit"),  # place 7 of four
        (replace(LISTS, count=LISTS.count - 1), "do not fit"),  # without its own page
        (replace(LISTS, count=LISTS.count + 2), "do not fit"),
        (replace(LISTS, index=LISTS.index.flip(-1)), "do not fit"),
        (replace(LISTS, index=torch.tensor([[[3, 3, 7]]], dtype=torch.int32)), "do not fit"),
        (replace(LISTS, index=torch.tensor([[[-1, 3, 7]]], dtype=torch.int32)), "do not fit"),
    ],
)
def test_lists_that_do_not_fit(kept: KeptPages, words: str) -> None:
    LISTS.check("op", BATCH, 1)
    with pytest.raises(KernelArgumentError, match=words):
        kept.check("op", BATCH, 1)


# --- numbers --------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_long_tails_are_not_lost(seed: int) -> None:
    """One token far above 500 others, whose weights e^-17 each are too small for a half, and together are not."""
    paged = random_paged([513], 1, 64, HALF)
    paged.pages.k.values[:], paged.pages.v.values[:] = 0.0, 1.0
    first = paged.tables[0][0]
    paged.pages.k.values[first, 0, 0, 0], paged.pages.v.values[first, 0, 0] = 17.0, 0.0
    q = torch.zeros(1, 1, 64).half()
    q[..., 0] = 8.0
    out = simulated(q, paged, paged.batch([1]))
    tail = 512 * torch.tensor(-17.0).exp()
    torch.testing.assert_close(out.float(), (tail / (1 + tail)).expand(1, 1, 64), rtol=2e-3, atol=0)


@needs_nvrtc
def test_a_row_keeps_its_nan_to_itself(seed: int) -> None:
    paged = random_paged([40], 1, 64, HALF)
    q = torch.randn(40, 1, 64).half()
    q[7, 0, 3] = float("nan")
    assert torch.equal(simulated(q, paged, paged.batch([40])).isnan().any(-1)[:, 0], torch.arange(40) == 7)


@needs_nvrtc
def test_strided_and_odd_queries(seed: int) -> None:
    """As a projection gives them, read in place; and from an address that is no multiple of 16 bytes."""
    paged = random_paged([30], 1, 64, HALF)
    wide = torch.randn(9, 2, 128).half()
    batch, dense = paged.batch([9]), wide[..., 64:].contiguous()
    room = torch.empty(dense.numel() + 1).half()
    wanted = simulated(dense, paged, batch)
    assert torch.equal(simulated(wide[..., 64:], paged, batch), wanted)
    assert torch.equal(simulated(room[1:].view(dense.shape).copy_(dense), paged, batch), wanted)
    relative_error(wanted, exact(dense, paged, [9], 64**-0.5)[0], QUANTIZED)


@pytest.mark.parametrize("name", FORMATS)
def test_through_the_library(name: str, seed: int) -> None:
    """On a CPU with its kernels; NaN behind the lengths stays there."""
    paged = random_paged([70, 65, 9], 2, 64, KVFormat.named(name, torch.float16))
    q, gate = (torch.randn(70 + 3 + 1, 6, 64).half() for _ in range(2))
    out = attend_with_library(q, paged.pages, paged.batch([70, 3, 1]), 0.1, gate)
    expected = exact(q, paged, [70, 3, 1], 0.1)[0] * gate.double().sigmoid()
    relative_error(out, expected, QUANTIZED)


# --- dispatch and refusals ------------------------------------------------------------------------------------------


@needs_nvrtc
def test_the_last_rung_is_the_default(seed: int) -> None:
    paged = random_paged([3], 1, 64, HALF)
    with use_executor("sim"), recorded_launches(QUIET) as results:
        attention_prefill(torch.randn(3, 1, 64).half(), paged.pages, paged.batch([3]))
    assert [result.program.text for result in results] == [sources.read_rung("attention_prefill", RUNGS[-1]).text]
    assert RUNGS[-1] in LADDERS["attention_prefill"].in_use
    assert macros(256, 8, 4) == {"HEAD_DIM": 256, "K_BITS": 8, "V_BITS": 4}


def test_newer_gpus_use_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a rung, kept pages or sums are asked for."""
    paged, calls = random_paged([3], 1, 64, HALF), []
    q, batch = torch.randn(3, 1, 64).half(), paged.batch([3])
    monkeypatch.setattr(module, "library_is_faster", lambda device: True)
    monkeypatch.setattr(module, "attend_with_library", lambda *given: calls.append("library"))
    monkeypatch.setattr(module, "_launch", lambda rung, *given: calls.append(rung))
    with use_executor("sim"):
        attention_prefill(q, paged.pages, batch)
        attention_prefill(q, paged.pages, batch, rung="3_split_d")
        attention_prefill(q, paged.pages, batch, kept=KeptPages.all_of(batch, 1))
        attention_prefill(q, paged.pages, batch, lse=torch.empty(3, 1))
    assert calls == ["library", "3_split_d", RUNGS[-1], RUNGS[-1]]
    assert not library_is_faster(torch.device("cpu"))


Call = Callable[[Tensor, Paged], object]


@pytest.mark.parametrize("executor", ["sim", "torch"])
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), gate=q.float()), "gate is float32, q is float16"),
        (lambda q, p: attention_prefill(q[:2], p.pages, p.batch([3])), r"q is \[2, 2, 64\]; expected"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), scale=0), "scale is 0"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), scale=-1.0), "scale is -1"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), scale=1e38), "scale is 1e"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), scale=float("nan")), "scale is nan"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), lse=torch.empty(3)), "lse is"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), rung="9_best"), "9_best.*Its rungs: 1_scalar"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), rung=1), "the rung is 1"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), kept=LISTS), "kept pages"),
        (lambda q, p: attention_prefill(q, p.pages, p.batch([3]), kept=[]), "kept is a list"),
        (lambda q, p: attention_prefill(q, p.pages, PagedBatch.of([3], [3], [[99]])), "page 99"),
        (lambda q, p: attention_prefill(q, None, p.batch([3])), "pages is a NoneType"),
        (lambda q, p: attention_prefill(q, p.pages, None), "batch is a NoneType"),
        (lambda q, p: attention_prefill(q, replace(p.pages, v=small().v), p.batch([3])), "values has shape"),
    ],
)
def test_what_it_refuses(call: Call, words: str, executor: str) -> None:
    paged = random_paged([3], 1, 64, HALF)
    with use_executor(executor), pytest.raises(KernelArgumentError, match=words):
        call(torch.randn(3, 2, 64).half(), paged)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q, p: attention_prefill(q.float(), p.pages, p.batch([3])), "q is float32; its kernels take float16"),
        (lambda q, p: attention_prefill(q, bfloat16(), p.batch([3])), "keys is bfloat16"),
        (lambda q, p: attention_prefill(q[..., :32], small(), p.batch([3])), "head dim 32 is not built.* 64, 128, 256"),
    ],
)
def test_what_the_kernels_do_not_take(call: Call, words: str) -> None:
    paged = random_paged([3], 1, 64, HALF)
    cleared(paged)
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=words):
        call(torch.randn(3, 2, 64).half(), paged)
    assert isinstance(call(torch.randn(3, 2, 64).half(), paged), Tensor)


def bfloat16() -> module.KVPages:
    return module.KVPages.zeros(4, 1, 64, KVFormat(torch.bfloat16))


def small() -> module.KVPages:
    return module.KVPages.zeros(4, 1, 32, HALF)
