"""Decode attention: how it is divided, what it refuses, that nothing but its tokens counts, and its machine code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_attention_decode import FORMATS, check_attention_decode, cleared, exact
from helpers.paged import Paged, exact_attention, random_paged
from torch import Tensor

from labkit.device import use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError
from labkit.ops import attention_decode as module
from labkit.ops.attention_decode import RUNGS, attention_decode
from labkit.ops.attention_decode_plan import MOST_SPLITS, Slices, splits
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_batch import PagedBatch
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import KVFormat

FAST = ("4_wide", "5_tensor_cores")
compiles = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


def pool(lengths: tuple[int, ...], name: str = "fp16", dim: int = 64, kv_heads: int = 1) -> Paged:
    return random_paged(lengths, kv_heads, dim, KVFormat.named(name, torch.float16))


def queries(rows: int, heads: int, dim: int = 64) -> Tensor:
    return torch.randn(rows, heads, dim).half()


@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_several_rows(rung: str, name: str, seed: int) -> None:
    with use_executor("sim"):
        check_attention_decode(rung, ((66, 9), (3, 1), 1, 2, 64, name, True, 2), "cpu")


@pytest.mark.parametrize("rung", RUNGS[2:])
def test_a_ragged_batch_in_many_splits(rung: str, seed: int) -> None:
    """A context of 1000 in 16 splits of a page, and beside it sequences that leave most of them without tokens."""
    with use_executor("sim"):
        check_attention_decode(rung, ((1000, 1, 65), (1, 1, 2), 1, 1, 64, "fp16", True, 16), "cpu")


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_more_queries_than_a_slice_holds(rung: str, seed: int) -> None:
    """Ten query heads on a KV head; and eight rows of one head beside one row, whose second slice is empty."""
    with use_executor("sim"):
        check_attention_decode(rung, ((67,), (1,), 1, 10, 64, "int8", False, 1), "cpu")
        check_attention_decode(rung, ((70, 3), (8, 1), 1, 2, 64, "fp16", False, 2), "cpu")


def test_the_helpers_definition_is_the_plain_one(seed: int) -> None:
    paged, rows = pool((70, 5), "k8v4", kv_heads=2), [3, 1]
    q = queries(4, 4)
    for ours, plain in zip(exact(q, paged, rows, 0.2), exact_attention(q, paged, rows, 0.2), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rung", RUNGS[2:])
def test_splits_change_nothing_but_rounding(rung: str, seed: int) -> None:
    """One split, a few, two levels of adding up, more than there are pages; and twice the same, bit for bit."""
    paged = pool((64 * 18,))
    q, batch = queries(1, 1), paged.batch([1])
    with use_executor("sim"):
        results = [attention_decode(q, paged.pages, batch, rung=rung, split_count=n) for n in (1, 5, 18, 40, 40)]
    assert torch.equal(results[-1], results[-2])
    expected = exact(q, paged, [1], 64**-0.5)[0]
    for result in results:
        relative_error(result, expected, QUANTIZED)


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_a_captured_launch_serves_shorter_contexts(rung: str, seed: int) -> None:
    """Lengths and pages are those on the device: plain numbers only say for how long a context the grid is made."""
    paged = pool((65,))
    q, batch = queries(1, 3), paged.batch([1])
    table = torch.zeros(1, 40, dtype=torch.int32)
    table[:, :2] = batch.table
    table[:, 2:] = 1 << 30  # a page that is not there: not to be touched
    bucket = dataclasses.replace(batch, table=table, longest=40 * PAGE_SIZE)
    with use_executor("sim"):
        out = attention_decode(q, paged.pages, bucket, rung=rung)
    relative_error(out, exact(q, paged, [1], 64**-0.5)[0], QUANTIZED)


@pytest.mark.parametrize("rung", RUNGS[1:])
def test_a_sink_does_not_round_away_the_others(rung: str, seed: int) -> None:
    """The first token weighs e^11, 60,000 times as much as each other; values of its tile are 0: the others count."""
    paged = pool((192,))
    k, v = (store.values[paged.tables[0]] for store in (paged.pages.k, paged.pages.v))
    k[..., 0] = 0
    k[0, 0, 0, 0], v[0, 0, :32] = 11, 0
    paged.pages.k.values[paged.tables[0]], paged.pages.v.values[paged.tables[0]] = k, v
    q = torch.zeros(1, 1, 64).half()
    q[..., 0] = 1
    with use_executor("sim"):
        out = attention_decode(q, paged.pages, paged.batch([1]), scale=1.0, rung=rung)
    ours, expected = out.double() * 1e3, exact(q, paged, [1], 1.0)[0] * 1e3
    assert 0.01 < expected.norm() < 100
    relative_error(ours, expected, QUANTIZED)


@pytest.mark.parametrize("rung", RUNGS)
def test_no_number_in_q_gives_none(rung: str, seed: int) -> None:
    paged = pool((5,), "int8")
    q = queries(1, 2)
    q[0, 1, 7] = float("nan")
    with use_executor("sim"):
        out = attention_decode(q, paged.pages, paged.batch([1]), rung=rung)
    assert out[0, 1].isnan().all() and not out[0, 0].isnan().any()


def test_without_a_rung(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor cores from four queries on, where the GPU has them."""
    chosen: list[str] = []
    monkeypatch.setattr(module, "_launch", lambda rung, *_: chosen.append(rung))
    paged = pool((9,))
    with use_executor("sim"):
        for rows, heads in ((1, 8), (1, 3), (2, 2), (1, 1), (8, 1)):
            attention_decode(queries(rows, heads), paged.pages, paged.batch([rows]))
        monkeypatch.setattr(module, "is_v100", lambda device: False)
        attention_decode(queries(8, 8), paged.pages, paged.batch([8]))
    assert chosen == [FAST[1], FAST[0], FAST[1], FAST[0], FAST[1], FAST[0]]


@pytest.mark.parametrize(
    ("rows", "group", "most", "expected"),
    [(1, 6, 8, (1, 6)), (2, 6, 8, (2, 6)), (1, 10, 8, (2, 6)), (5, 1, 8, (1, 6)), (8, 8, 8, (8, 8)), (1, 8, 6, (2, 4))],
)
def test_slices(rows: int, group: int, most: int, expected: tuple[int, int]) -> None:
    slices = Slices.of(rows, group, most)
    assert (slices.count, slices.queries) == expected
    assert slices.count * slices.queries >= rows * group


def test_splits_fill_the_gpu_once() -> None:
    assert splits((2048,), 2, 80, 2) == 79  # 26 pages each: 25.6 would be even
    assert splits((1024,) * 8, 2, 132, 3) == 24  # 384 blocks in 396 places
    assert splits((16,), 2, 80, 2) == 8  # two pages each: a round
    assert splits((64,), 2, 80, 2) == 32
    assert splits((1,), 1, 80, 2) == splits((2,), 1, 80, 2) == 1
    assert splits((10**6,), 1, 1000, 3) <= MOST_SPLITS
    assert all(2 * splits((n,), 2, 80, 2) <= 160 for n in range(1, 3000, 7))


def test_splits_even_out_what_does_not_fit_at_a_time() -> None:
    """256 blocks in 160 places would take as long as 320: shorter ones share the places better."""
    assert splits((2048,) * 64, 4, 80, 2) > 8


def test_a_long_sequence_is_not_held_up_by_short_ones() -> None:
    """One of 128K among seven of 1K is divided nearly as it would be alone."""
    alone, among = splits((2048,), 2, 80, 2), splits((2048, *(16,) * 7), 2, 80, 2)
    assert 0.85 * alone < among <= alone


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.update(q=torch.ones(1, 2, 64)), "q is float32; its kernels take float16"),
        (lambda g: g.update(q=torch.ones(1, 2, 64), gate=torch.ones(1, 2, 64)), "q is float32; its kernels"),
    ],
)
def test_what_its_kernels_refuse(change: Callable[[dict[str, object]], None], words: str, seed: int) -> None:
    given = changed(change)
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=words):
        attention_decode(**given)  # type: ignore[arg-type]
    assert attention_decode(**given).dtype == torch.float32  # type: ignore[arg-type]


def changed(change: Callable[[dict[str, object]], None]) -> dict[str, object]:
    paged = pool((70,))
    cleared(paged)
    given: dict[str, object] = {"q": queries(1, 2), "pages": paged.pages, "batch": paged.batch([1])}
    change(given)
    return given


def other_values(given: dict[str, object], *shape: int) -> None:
    pages = given["pages"]
    assert isinstance(pages, KVPages)
    given["pages"] = dataclasses.replace(pages, v=PageStore(torch.zeros(shape).half(), None, 16))


@pytest.mark.parametrize("executor", ["sim", "torch"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.update(gate=torch.ones(1, 2, 64)), "gate is float32, q is float16. Convert the gate to float16"),
        (lambda g: g.update(lse=torch.ones(1, 4)[:, ::2]), "Give a dense fp32 tensor"),
        (lambda g: g.update(split_count=0), "split_count is 0"),
        (lambda g: g.update(split_count=MOST_SPLITS + 1), "split_count is 257"),
        (lambda g: g.update(split_count=True), "split_count is True"),
        (lambda g: g.update(split_count=2.0), "split_count is 2.0"),
        (lambda g: g.update(rung=RUNGS[0], split_count=0), "split_count is 0"),
        (lambda g: g.update(rung=RUNGS[0], split_count=2), "1_warp_per_head does not split.*choose one of 3_split_kv"),
        (lambda g: g.update(rung=RUNGS[1], split_count=2), "2_packed_group does not split"),
        (lambda g: g.update(rung=""), "the rung is ''"),
        (lambda g: g.update(rung=4), "the rung is 4"),
        (lambda g: g.update(rung="9"), "no rung '9'. Its rungs: 1_warp_per_head, 2_packed_group"),
        (lambda g: g.update(batch=PagedBatch.of([1], [70], [[1, 99]])), "page 99 of"),
        (lambda g: g.update(batch=None), "batch is a NoneType. Give a PagedBatch, as PagedBatch.of"),
        (lambda g: g.update(pages=None), "pages is a NoneType. Give a KVPages, as KVPages.zeros"),
        (lambda g: other_values(g, 9, 1, 64, 64), r"values has shape \[9, 1, 64, 64\]; expected is \[pages = 5"),
        (lambda g: other_values(g, 5, 1, 64, 32), r"values has shape \[5, 1, 64, 32\]"),
        (lambda g: g.update(scale="wide"), "scale is a str"),
        (lambda g: g.update(scale=float("nan")), "scale is nan"),
        (lambda g: g.update(scale=float("inf")), "scale is inf"),
        (lambda g: g.update(scale=1e38), "scale is 1e.38. Give a number above 0 and below"),
        (lambda g: g.update(scale=0), "scale is 0"),
        (lambda g: g.update(scale=-0.1), "scale is -0.1"),
        (lambda g: g.update(gate="x"), "gate is a str"),
        (lambda g: g.update(q=None), "q is a NoneType"),
    ],
)
def test_what_it_refuses(change: Callable[[dict[str, object]], None], words: str, executor: str, seed: int) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=words):
        attention_decode(**changed(change))  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", ["sim", "torch"])
def test_one_split_is_what_rungs_without_any_have(executor: str, seed: int) -> None:
    given = changed(lambda g: g.update(rung=RUNGS[0], split_count=1))
    with use_executor(executor):
        assert attention_decode(**given).isfinite().all()  # type: ignore[arg-type]


def test_other_sizes_are_refused_by_name(seed: int) -> None:
    for dim, rows, words in ((96, 1, "head dim 96 is not built.*64, 128, 256"), (64, 9, "Use attention_prefill")):
        paged = pool((70,), dim=dim)
        with use_executor("sim"), pytest.raises(KernelArgumentError) as raised:
            attention_decode(queries(rows, 2, dim), paged.pages, paged.batch([rows]))
        assert re.search(words, f"{raised.value.message} {raised.value.cure}")
    paged = random_paged((70,), 1, 64, KVFormat(torch.float32))
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="pages of keys is float32"):
        attention_decode(queries(1, 2), paged.pages, paged.batch([1]))
