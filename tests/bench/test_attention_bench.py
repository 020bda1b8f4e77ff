"""labkit bench attention: what it asks for and makes of the times, with an imaginary clock, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.accuracy import relative_error
from helpers.command_line import run_process

from labkit.bench import attention
from labkit.bench.attention import bench_attention, measure
from labkit.bench.attention_calls import DENSE, GATHERED, by_groups, by_heads
from labkit.bench.attention_cases import (
    DECODE_CONTEXTS,
    GEOMETRIES,
    KV_DTYPES,
    DecodeCase,
    Geometry,
    PrefillCase,
    decode_cases,
    prefill_cases,
)
from labkit.bench.attention_data import dense_cache, random_pages, random_pool
from labkit.bench.attention_times import AttentionBench, DecodeTimes, PrefillTimes
from labkit.bench.clock import LABKIT, Clock
from labkit.bench.graph_timing import Call
from labkit.cli import attention as command
from labkit.device.ladder import Ladder
from labkit.errors import ConfigError, ExecutorError

TINY = Geometry("tiny", 6, 2, 64)
CPU = torch.device("cpu")


def imaginary() -> AttentionBench:
    decode = DecodeTimes(DecodeCase(TINY, 1, 128), "int8", {LABKIT: 1e-5, GATHERED: 4e-5, DENSE: 2e-5})
    prefill = PrefillTimes(PrefillCase(TINY, 64, 128), "fp16", {"4_last": 1e-5, DENSE: 1e-5})
    return AttentionBench("imaginary", "1.2", "2.10", "0.3", "abc", "2026-11-30", 10.0, (decode,), (prefill,))


class Recorder:
    """A clock that runs every call once, keeps what it gave, and says a millisecond."""

    def __init__(self) -> None:
        self.results: list[list[Any]] = []
        self.asked: list[int] = []

    def seconds(self, calls: Sequence[Call]) -> float:
        self.results.append([call() for call in calls])
        return 1e-3 * len(self.results)

    def copies(self, nbytes: int) -> int:
        self.asked.append(nbytes)
        return 2

    @property
    def clock(self) -> Clock:
        return Clock(self.seconds, self.copies)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(ExecutorError, match="torch sees none"):
        bench_attention(decode_cases(["smollm2"], [1]), [], ["fp16"])


def test_bytes_are_those_of_keys_values_and_scales() -> None:
    case = DecodeCase(GEOMETRIES["27b-tp2"], 8, 1024)
    tokens = 8 * 1024 * 2  # of each KV head
    assert case.kv_bytes("fp16") == tokens * 2 * 2 * 256
    assert case.kv_bytes("int8") == tokens * 2 * (256 + 2)
    assert case.kv_bytes("int4") == tokens * 2 * (128 + 4 * 4)
    assert case.kv_bytes("k8v4") == tokens * (258 + 144)


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_bytes_are_what_the_pages_take(kv: str) -> None:
    pages = random_pages(TINY, kv, 3, CPU)
    parts = [part for store in (pages.k, pages.v) for part in (store.values, store.params) if part is not None]
    assert sum(part.nbytes for part in parts) == TINY.kv_bytes(kv, 3 * 64)


def test_flops_count_what_the_mask_leaves() -> None:
    mask = torch.ones(5, 12).tril(12 - 5)
    assert PrefillCase(TINY, 5, 12).flop == 2 * 2 * 6 * 64 * int(mask.sum())


def test_what_was_asked_for_is_measured() -> None:
    """Batches 1 and 8, 1K to 128K, 27B on two GPUs and SmolLM2; chunks within their context."""
    cases = decode_cases(list(GEOMETRIES), [1, 8])
    assert {(case.batch, case.context) for case in cases} == {(b, n) for b in (1, 8) for n in DECODE_CONTEXTS}
    assert (min(DECODE_CONTEXTS), max(DECODE_CONTEXTS)) == (1024, 131072)
    assert {(g.heads, g.kv_heads, g.head_dim) for g in GEOMETRIES.values()} == {(12, 2, 256), (9, 3, 64)}
    found = {(case.chunk, case.context) for case in prefill_cases(["27b-tp2"], [2048, 4096])}
    assert found == {(2048, 4096), (4096, 4096), (2048, 32768), (4096, 32768)}
    assert [case.chunk for case in prefill_cases(["27b-tp2"], [64, 256], [128])] == [64]


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_the_dense_cache_holds_what_the_pages_hold(kv: str) -> None:
    pool = random_pool(TINY, kv, sequences=2, rows=1, context=192, copies=1, device=CPU)
    [batch] = pool.batches
    for ours, exact in zip(dense_cache(pool.pages, batch.table), pool.pages.gather(batch.table), strict=True):
        assert ours.dtype == torch.float16 and ours.shape == (2, 2, 192, 64)
        torch.testing.assert_close(ours.float(), exact, rtol=1e-3, atol=1e-3)


def test_batches_of_a_pool_share_no_page() -> None:
    pool = random_pool(TINY, "int4", sequences=3, rows=2, context=128, copies=4, device=CPU)
    held = torch.cat([batch.table.flatten() for batch in pool.batches])
    assert sorted(held.tolist()) == list(range(1, pool.pages.num_pages))
    assert held.tolist() != sorted(held.tolist())
    assert all(batch.longest == 128 and batch.rows == 6 for batch in pool.batches)


def test_the_library_is_asked_the_same_question() -> None:
    """Rows see what came before them and themselves, however the heads are given."""
    k, v = (torch.randn(2, 2, 9, 64) for _ in range(2))
    for rows in (1, 4, 9):
        q = torch.randn(2, rows, 6, 64)
        scores = torch.einsum("stkgd,sknd->stkgn", q.unflatten(2, (2, 3)), k) / 8
        seen = torch.ones(rows, 9, dtype=torch.bool).tril(9 - rows)
        weights = scores.masked_fill(~seen[None, :, None, None], -torch.inf).softmax(-1)
        exact = torch.einsum("stkgn,sknd->stkgd", weights, v).flatten(2, 3)
        torch.testing.assert_close(by_heads(q, k, v), exact)
        if rows == 1:
            torch.testing.assert_close(by_groups(q, k, v), exact)


@pytest.mark.parametrize("kv", KV_DTYPES)
def test_decode_compares_equal_work(kv: str) -> None:
    """labkit and the library over gathered pages give the same, for every batch of the pool."""
    recorder, case = Recorder(), DecodeCase(TINY, 2, 128)
    [times], none = measure([case], [], [kv], CPU, recorder.clock)
    assert none == [] and list(times.seconds) == [LABKIT, GATHERED, DENSE]
    by_head, by_group, ours, gathered = recorder.results
    assert recorder.asked == [case.kv_bytes("fp16"), case.kv_bytes(kv)]
    assert len(ours) == len(gathered) == len(by_head) == 2
    for a, b in zip([*ours, *by_head], [*gathered, *by_group], strict=True):
        a, b = (x.reshape(2, 6, 64) for x in (a, b))
        relative_error(a, b.double(), 5e-3)
    assert times.seconds[DENSE] == 1e-3  # the faster way of the two


@pytest.mark.parametrize("kv", ["fp16", "int4"])
def test_prefill_compares_equal_work(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.LADDERS, attention.PREFILL, Ladder(attention.PREFILL, ("1_a", "2_b"), ("k",)))
    monkeypatch.setattr("labkit.bench.attention_calls.attention_prefill", _in_torch)
    recorder, case = Recorder(), PrefillCase(TINY, 70, 192)
    none, [times] = measure([], [case], [kv], CPU, recorder.clock)
    assert none == [] and list(times.seconds) == ["2_b", GATHERED, DENSE]
    dense, ours, gathered = recorder.results
    assert len(dense) == len(ours) == 2
    for a, b in zip(ours, gathered, strict=True):
        relative_error(a, b[0].double(), 5e-3)


def _in_torch(q: torch.Tensor, pages: Any, batch: Any, rung: str | None) -> torch.Tensor:
    from labkit.ops.attention_torch import attend

    return attend(q, pages, batch, q.shape[-1] ** -0.5)


def test_all_rungs_are_timed_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = Ladder(attention.DECODE, ("1_a", "2_b"), ("k",))
    monkeypatch.setitem(attention.LADDERS, attention.DECODE, ladder)
    monkeypatch.setattr("labkit.bench.attention_calls.attention_decode", _in_torch)
    [times], _ = measure([DecodeCase(TINY, 1, 64)], [], ["fp16"], CPU, Recorder().clock, all_rungs=True)
    assert list(times.seconds) == [LABKIT, "1_a", "2_b", GATHERED, DENSE]


def test_what_takes_too_long_is_left_out() -> None:
    never = Clock(lambda calls: None, lambda nbytes: 1)
    [times], _ = measure([DecodeCase(TINY, 1, 64)], [], ["fp16"], CPU, never)
    assert times.seconds == {} and times.to_dict(1.0)["share_of_copy"] is None


def test_a_case_that_does_not_fit_is_named() -> None:
    def full(nbytes: int) -> int:
        raise torch.OutOfMemoryError

    for cases in ([DecodeCase(TINY, 1, 64)], []), ([], [PrefillCase(TINY, 64, 64)]):
        with pytest.raises(ExecutorError, match=r"memory does not hold the case .* tiny, .* --context"):
            measure(*cases, ["fp16"], CPU, Clock(lambda calls: 1.0, full))


def test_a_library_without_room_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **settings: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("labkit.bench.attention_calls.F.scaled_dot_product_attention", full)
    monkeypatch.setattr("labkit.bench.attention_calls.attention_decode", lambda *arguments, rung: torch.zeros(1))
    [times], _ = measure([DecodeCase(TINY, 1, 64)], [], ["fp16"], CPU, Recorder().clock)
    assert list(times.seconds) == [LABKIT]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_small_cases_on_a_gpu() -> None:
    """With real graphs: every kernel has a figure, and no memory is faster than twice a copy."""
    decode, prefill = decode_cases(list(GEOMETRIES), [1, 2], [1024]), prefill_cases(["27b-tp2"], [256], [1024])
    document = bench_attention(decode, prefill, KV_DTYPES, all_rungs=True).to_dict()
    assert len(document["decode"]) == 16 and len(document["prefill"]) == 4
    for row in document["decode"]:
        assert {LABKIT, GATHERED, DENSE, *attention.LADDERS[attention.DECODE].rungs} == set(row["microseconds"])
        assert 0 < row["share_of_copy"] < 2
    for row in document["prefill"]:
        assert {GATHERED, DENSE, *attention.LADDERS[attention.PREFILL].rungs} == set(row["microseconds"])


def test_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    cases = [DecodeCase(TINY, 1, 64)], [PrefillCase(TINY, 64, 64)]
    measure(*cases, ["fp16"], CPU, Recorder().clock, progress=lambda *what: told.append(what))
    assert told == [(0, 2, "decode tiny, batch 1, 64 tokens"), (1, 2, "prefill tiny, 64 of 64 tokens")]


def test_the_document() -> None:
    document = json.loads(json.dumps(imaginary().to_dict()))
    assert document["origin"] == "measured" and document["device"] == "imaginary"
    [row] = document["decode"]
    nbytes = 128 * 2 * 2 * (64 + 2)
    assert row["mb"] == pytest.approx(nbytes / 1e6) and row["microseconds"][GATHERED] == pytest.approx(40)
    assert row["gb_per_s"][LABKIT] == pytest.approx(nbytes / 1e4)
    assert row["share_of_copy"] == pytest.approx(nbytes / 1e5)
    assert (row["model"], row["batch"], row["context"], row["kv"]) == ("tiny", 1, 128, "int8")
    [row] = document["prefill"]
    assert row["gflop"] == pytest.approx(PrefillCase(TINY, 64, 128).flop / 1e9)
    assert row["tflop_per_s"]["4_last"] == pytest.approx(PrefillCase(TINY, 64, 128).flop / 1e7)
    assert (row["model"], row["chunk"], row["context"], row["kv"]) == ("tiny", 64, 128, "fp16")


def test_what_it_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(attention, "bench_attention", lambda *arguments: asked.append(arguments) or imaginary())
    monkeypatch.setenv("COLUMNS", "150")
    command.bench_attention()
    text = capsys.readouterr().out
    assert "imaginary" in text and "gather + SDPA" in text and "tiny" in text and "4_last" in text
    command.bench_attention(part="decode", context=[128], batch=[2], as_json=True)
    assert json.loads(capsys.readouterr().out)["decode"][0]["batch"] == 1
    assert len(asked[0][0]) == 20 and len(asked[0][1]) == 8 and asked[0][2] == KV_DTYPES
    assert [(case.batch, case.context) for case in asked[1][0]] == [(2, 128)] * 2 and asked[1][1] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--part", "both"],
        ["--context", "100"],
        ["--context", "0"],
        ["--batch", "0"],
        ["--geometry", "gpt2"],
        ["--kv-cache-dtype", "fp8"],
        ["--chunks", "0"],
        ["--part", "prefill", "--context", "64"],
        ["--part", "prefill", "--batch", "1"],
        ["--part", "decode", "--chunks", "64"],
    ],
)
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    keywords = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(arguments[::2], arguments[1::2], strict=True)
    }
    given = {name: value if name == "part" else [_number(value)] for name, value in keywords.items()}
    with pytest.raises(ConfigError):
        command.bench_attention(**given)  # type: ignore[arg-type]


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def test_a_refusal_is_one_line() -> None:
    ended = run_process("bench", "attention", "--part", "prefill", "--context", "64")
    assert ended.code == 1 and ended.err.count("\n") == 1 and "--part decode" in ended.err
