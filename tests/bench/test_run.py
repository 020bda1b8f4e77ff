"""Benchmark rows: complete, honest about their origin, and in the right unit. No test looks at how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, saved
from helpers.packers import write_awq_checkpoint

from labkit import LLM, SamplingParams, __version__
from labkit.bench.ceiling import Ceiling, decode_ceiling, read_bandwidth
from labkit.bench.results import BenchRow, Spread, measured_here
from labkit.bench.run import SideBySide, iter_bench, run_bench
from labkit.bench.timing import BenchStopped, Timing, time_labkit
from labkit.bench.workload import Workload, random_prompts, tokens_per_answer, why_it_does_not_fit
from labkit.errors import ConfigError, RequestError
from labkit.model.cache import kv_bytes_per_token, state_bytes_per_slot
from labkit.ops.linear_torch import INT4_KERNEL_MAX_ROWS, Int4KernelLinear

FIGURES = ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_s", "tpot_s")


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth is not under test here."""
    monkeypatch.setattr(
        "labkit.bench.run.read_bandwidth", lambda device: read_bandwidth(1 << 16, repeats=1, device=device)
    )


@pytest.fixture
def tiny(tiny_path: Path) -> Any:
    with LLM(tiny_path, dtype="float32", kv_cache_dtype="int8", decode_batch_size=2, max_seq_len=96) as llm:
        yield llm


def test_rows_are_complete_and_say_where_they_come_from(tiny: LLM, tiny_path: Path) -> None:
    rows = run_bench(tiny, [8, 70], [1, 2], decode_tokens=3, repeats=2)
    assert [(row.context, row.batch) for row in rows] == [(8, 1), (8, 2), (70, 1), (70, 2)]
    for row in rows:
        flat = json.loads(json.dumps(row.to_dict()))
        for name in FIGURES:
            assert 0 < flat[f"{name}_min"] <= flat[name] <= flat[f"{name}_max"]
        assert flat["ceiling_share"] == pytest.approx(flat["decode_tokens_per_s"] / flat["ceiling_tokens_per_s"])
        assert flat["origin"] == "measured" and flat["error"] is None
        assert (flat["system"], flat["model"]) == ("labkit", str(tiny_path))
        assert (flat["dtype"], flat["kv_cache_dtype"]) == ("float32", "int8")
        assert (flat["torch"], flat["labkit"]) == (torch.__version__, __version__)
        assert flat["threads"] == torch.get_num_threads() and "cores" in flat["device"]
        assert flat["date"].startswith("20") and flat["date"].endswith("+00:00")
    assert not tiny.engine.has_work


def test_what_does_not_fit_is_a_row_with_its_reason(tiny: LLM) -> None:
    rows = run_bench(tiny, [8, 94, 500], [1, 3], decode_tokens=2, repeats=1)
    reasons = {(row.context, row.batch): row.error for row in rows}
    assert reasons[8, 1] is None
    assert "max_seq_len is 96" in str(reasons[94, 1]) and "97" in str(reasons[94, 1])
    assert "decode_batch_size 2" in str(reasons[500, 3])
    for row in rows:
        if row.error:
            assert all(getattr(row, name) is None for name in FIGURES)
            assert json.dumps(row.to_dict())


def test_a_pool_too_small_for_the_batch_is_an_error_row(tiny_path: Path) -> None:
    with LLM(tiny_path, dtype="float32", num_pages=3, max_seq_len=192) as llm:
        fits, needs_more = run_bench(llm, [60], [3, 4], decode_tokens=3, repeats=1)
    assert fits.error is None
    assert needs_more.error == "The batch needs 4 KV pages, the pool has 3."


def test_an_engine_error_ends_its_cell_only(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_for_two(llm: LLM, prompts: list[list[int]], *rest: Any) -> Timing:
        if len(prompts) == 2:
            raise RequestError("Broken.", cure="Mend it.")
        return time_labkit(llm, prompts, *rest)

    monkeypatch.setattr("labkit.bench.subject.time_labkit", fails_for_two)
    rows = run_bench(tiny, [4, 5], [1, 2], decode_tokens=1, repeats=1)
    assert [row.error for row in rows] == [None, "Broken. Mend it."] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"context_lengths": []},
        {"context_lengths": [0]},
        {"context_lengths": "12"},
        {"context_lengths": [True]},
        {"context_lengths": 8},
        {"batch_sizes": [2, -1]},
        {"batch_sizes": [1.5]},
        {"decode_tokens": 0},
        {"decode_tokens": "8"},
        {"repeats": 0},
    ],
)
def test_impossible_workloads_are_refused(wrong: dict[str, Any], tiny: LLM) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        run_bench(tiny, **wrong)


def test_progress_counts_every_run_and_names_the_ceiling_first(tiny: LLM) -> None:
    told: list[tuple[int, int, str]] = []
    run_bench(tiny, [4, 300], [1, 2], decode_tokens=1, repeats=2, progress=lambda *news: told.append(news))
    done = [news[0] for news in told]
    assert done == sorted(done) and done[-1] == 12 and {news[1] for news in told} == {12}
    assert "ceiling" in told[0][2] and "GB/s" in told[0][2] and "context 4, batch 1" in told[0][2]
    assert sum("warm-up" in news[2] for news in told) == 2


@pytest.mark.parametrize("after", [0, 1, 6, 7, 13])
def test_stop_returns_the_finished_rows_and_frees_the_engine(after: int, tiny: LLM) -> None:
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    rows = run_bench(tiny, [4], [1, 2], decode_tokens=4, repeats=1, should_stop=should_stop)
    assert asked == after + 1  # nothing runs on
    # A cell takes 1 + 1 steps to warm up and 1 + 4 to measure.
    assert [row.batch for row in rows] == [1, 2][: after // 7]
    assert not tiny.engine.has_work and tiny.engine.scheduler.pages.num_free == tiny.engine.num_pages
    assert len(tiny.generate([[1, 2]], SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids) == 2


def test_rows_come_as_they_are_measured(tiny: LLM) -> None:
    rows = iter_bench(tiny, Workload([4], [1, 2], 1, 1))
    assert next(rows).batch == 1
    assert not tiny.engine.has_work
    assert next(rows).batch == 2


class Scripted:
    """A subject whose times are known."""

    def __init__(self, name: str, log: list[str], times: list[Timing]) -> None:
        self.about = dict.fromkeys(("system", "model", "dtype", "kv_cache_dtype"), name)
        self.vocabulary, self.log, self.times, self.prompts = 100, log, times, list[Any]()

    def problem(self, context: int, batch: int, decode_tokens: int) -> str | None:
        return "no" if self.about["system"] == "unfit" else None

    def ceiling(self, context: int, batch: int, bandwidth: float) -> Ceiling:
        return Ceiling(batch, weight_bytes=80, cache_bytes=20, bandwidth=1000)

    def time(self, prompts: Any, decode_tokens: int, should_stop: Any = None) -> Timing:
        self.log.append(f"{self.about['system']}{decode_tokens}")
        self.prompts.append(prompts)
        return self.times[self.log.count(self.log[-1]) - 1 + (decode_tokens != 1)]


def test_rates_are_tokens_over_seconds_and_the_warm_up_does_not_count() -> None:
    times = [Timing(9, 9, 9, 9), Timing(2, 5, 1, 0.5), Timing(4, 1, 3, 0.25), Timing(1, 2, 2, 0.125)]
    subject = Scripted("a", [], times)
    [[row]] = list(SideBySide([subject], Workload([10], [3], decode_tokens=4, repeats=3)))
    assert row.prefill_tokens_per_s == Spread(30 / 2, 30 / 4, 30 / 1)
    assert row.decode_tokens_per_s == Spread(12 / 2, 12 / 5, 12 / 1)
    assert row.ttft_s == Spread(2, 1, 3) and row.tpot_s == Spread(0.25, 0.125, 0.5)
    assert row.ceiling_tokens_per_s == 3 * 1000 / 100 and row.ceiling_share == 6 / 30


def test_runs_of_several_subjects_alternate_on_fresh_prompts() -> None:
    log: list[str] = []
    times = [Timing(1, 1, 1, 1)] * 4
    subjects = [Scripted("a", log, times), Scripted("unfit", log, times), Scripted("b", log, times)]
    [rows] = list(SideBySide(subjects, Workload([10], [2], decode_tokens=4, repeats=2)))
    assert log == ["a1", "b1", "a4", "b4", "a4", "b4"]
    assert [row.error for row in rows] == [None, "no", None]
    prompts = [tuple(map(tuple, p)) for subject in subjects for p in subject.prompts]
    assert len(set(prompts)) == len(prompts) == 6


@pytest.mark.parametrize(
    ("context", "batch", "budgets", "more"),
    [(50, 5, (32, 16), {}), (150, 9, (100, 100), {"sparse_prefill": True, "sparse_threshold": 100})],
    ids=["dense", "sparse, cut between tiles"],
)
def test_all_sequences_decode_together_for_the_measured_steps(
    context: int, batch: int, budgets: tuple[int, int], more: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    """Prefill in many steps: the first sequences decode meanwhile, and must last until all have decoded together."""
    settings = {"prefill_tokens": budgets[0], "mixed_prefill_tokens": budgets[1], "decode_batch_size": batch, **more}
    with LLM(saved(llama(), tmp_path), executor="torch", dtype="float32", **settings) as llm:
        prompts = random_prompts(160, context, batch)
        limit = tokens_per_answer(llm, context, batch, 6)
        batches: list[list[int]] = []
        run = llm.engine.runner.run
        llm.engine.runner.run = lambda batch, every: (  # type: ignore[method-assign]
            batches.append([chunk.length for chunk in batch.chunks]) or run(batch, every)
        )
        timing = time_labkit(llm, prompts, 6)
    assert batches[-6:] == [[1] * batch] * 6
    assert any(len(set(lengths)) > 1 for lengths in batches[:-6])
    assert len(batches) <= limit + context // budgets[1] + 1
    assert timing.ttft_s <= timing.prefill_s and min(vars(timing).values()) > 0


def test_a_cell_at_the_very_limit_runs(tiny: LLM) -> None:
    assert why_it_does_not_fit(tiny, 92, 1, 3) is None
    assert why_it_does_not_fit(tiny, 93, 1, 3) is not None
    [row] = run_bench(tiny, [92], [1], decode_tokens=3, repeats=1)
    assert row.error is None


def test_stopping_within_a_run_raises_and_drops_the_requests(tiny: LLM) -> None:
    with pytest.raises(BenchStopped):
        time_labkit(tiny, [[1, 2, 3]], 2, should_stop=lambda: True)
    assert not tiny.engine.has_work


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_ceiling_counts_the_bytes_of_a_step(dtype: str, kv: str, tiny_path: Path) -> None:
    with LLM(tiny_path, dtype=dtype, kv_cache_dtype=kv) as llm:
        ceiling = decode_ceiling(llm, context=100, batch=3, bandwidth=1e9)
        config = llm.engine.config
        linears = llm.engine.runner.model.linears
        kv_bytes = kv_bytes_per_token(llm.engine.model_config, config.kv_format)
        state = state_bytes_per_slot(llm.engine.model_config, config.torch_dtype)
    assert ceiling.cache_bytes == 3 * (100 * kv_bytes + state)
    assert ceiling.weight_bytes == sum(linear.bytes_read(3) for linear in linears.values())
    weights = 12_050_000  # parameters in linear layers, the head included; two bytes each, or four
    assert ceiling.weight_bytes == pytest.approx(weights * (4 if dtype == "float32" else 2), rel=0.05)
    assert ceiling.tokens_per_s == 3e9 / (ceiling.weight_bytes + ceiling.cache_bytes)
    assert f"{ceiling.tokens_per_s:.1f} tok/s" in str(ceiling)


def test_int4_weights_count_as_the_kernel_reads_them(seed: int, tmp_path: Path) -> None:
    """Few rows read the copy in the kernel's layout, many rows the packed weight; never both."""
    write_awq_checkpoint(tmp_path, llama(), group_size=32)
    with LLM(tmp_path) as llm:
        linears = [
            linear for linear in llm.engine.runner.model.linears.values() if isinstance(linear, Int4KernelLinear)
        ]
    assert linears
    for linear in linears:
        rows, cols = linear.weight.shape
        assert linear.bytes_read(1) == rows * cols // 2 + rows * cols // 32 * 4  # nibbles, and two bf16 per group
        assert linear.bytes_read(INT4_KERNEL_MAX_ROWS + 1) == linear.weight.nbytes
        assert linear.nbytes == linear.bytes_read(1) + linear.weight.nbytes


def test_bandwidth_is_positive_and_row_without_ceiling_has_no_share() -> None:
    assert read_bandwidth(1 << 20, repeats=2) > 0
    row = BenchRow("s", "m", "d", "k", 1, 1, 1, 1, measured_here(), decode_tokens_per_s=Spread(1, 1, 1))
    assert row.ceiling_share is None and row.to_dict()["ceiling_tokens_per_s"] is None


def test_a_single_sequence_waits_for_no_other(seed: int, tmp_path: Path) -> None:
    """Its prefill takes several steps, yet it generates nothing before the last of them."""
    settings: dict[str, Any] = {"prefill_tokens": 32, "mixed_prefill_tokens": 16, "max_seq_len": 104}
    with LLM(saved(llama(), tmp_path), dtype="float32", **settings) as llm:
        assert tokens_per_answer(llm, 100, 1, 3) == 4 < tokens_per_answer(llm, 100, 2, 3)
        [row] = run_bench(llm, [100], [1], decode_tokens=3, repeats=1)
    assert row.error is None


def test_rows_name_the_dtypes_that_ran(tiny_path: Path) -> None:
    with LLM(tiny_path) as llm:
        [row] = run_bench(llm, [8], [1], decode_tokens=1, repeats=1)
    assert (row.dtype, row.kv_cache_dtype) == ("bfloat16", "bfloat16")
