"""The comparison with transformers: right ratios from known timings, the same weights, one small real run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from helpers.models import llama, qwen35, random_ids, saved
from helpers.packers import write_awq_checkpoint, write_gguf_llama

from labkit import LLM
from labkit.bench import peer as peer_module
from labkit.bench.load_cost import LoadCost, measure_load
from labkit.bench.memory import peak_memory_bytes
from labkit.bench.peer import PeerCell, PeerReport, run_peer_transformers
from labkit.bench.peer_model import load_peer, plain_checkpoint
from labkit.bench.peer_subject import TransformersSubject, UnusableTimingError
from labkit.bench.results import BenchRow, Spread, measured_here
from labkit.bench.timing import BenchStopped
from labkit.errors import ExecutorError, MissingExtraError, ModelNotFoundError, UnsupportedModelError

ORIGIN = measured_here()


def _row(system: str, dtype: str, batch: int, decode: float | None, prefill: float | None = 100.0) -> BenchRow:
    return BenchRow(
        system,
        "m",
        dtype,
        "auto",
        context=64,
        batch=batch,
        decode_tokens=8,
        repeats=1,
        origin=ORIGIN,
        decode_tokens_per_s=None if decode is None else Spread(decode, decode, decode),
        prefill_tokens_per_s=None if prefill is None else Spread(prefill, prefill, prefill),
        error=None if decode else "did not fit",
    )


def _cell(batch: int, ours: float | None, fp32: float | None, bf16: float | None) -> PeerCell:
    peers = (_row("transformers", "float32", batch, fp32, 50.0), _row("transformers", "bfloat16", batch, bf16, 80.0))
    return PeerCell(_row("labkit", "auto", batch, ours, 120.0), peers)


def test_ratios_take_the_better_dtype_of_each_batch() -> None:
    report = PeerReport((_cell(1, 30.0, 20.0, 10.0), _cell(8, 90.0, 25.0, 45.0)), ())
    one, eight = report.comparison()
    assert (one["transformers_dtype"], one["transformers_decode_tokens_per_s"]) == ("float32", 20.0)
    assert (eight["transformers_dtype"], eight["transformers_decode_tokens_per_s"]) == ("bfloat16", 45.0)
    assert (one["decode_ratio"], eight["decode_ratio"]) == (1.5, 2.0)
    assert (one["decode_ratio_to_batch_1"], eight["decode_ratio_to_batch_1"]) == (1.5, 4.5)
    assert one["prefill_ratio"] == eight["prefill_ratio"] == 1.5  # of the dtype that prefills faster
    assert [row["labkit_decode_tokens_per_s"] for row in report.comparison()] == [30.0, 90.0]


def test_missing_figures_give_no_ratio() -> None:
    assert _cell(1, 30.0, None, 10.0).decode_ratio == 3.0
    assert _cell(1, 30.0, None, None).decode_ratio is None
    assert _cell(1, None, 20.0, 10.0).decode_ratio is None
    [row] = PeerReport((_cell(8, 30.0, 10.0, None),), ()).comparison()
    assert (row["decode_ratio"], row["decode_ratio_to_batch_1"]) == (3.0, None)


def test_report_is_one_json_document() -> None:
    report = PeerReport((_cell(1, 30.0, 20.0, None),), (LoadCost("labkit", "auto", 1.5, 2**29),))
    document = json.loads(json.dumps(report.to_dict()))
    assert [(row["system"], row["dtype"]) for row in document["rows"]] == [
        ("labkit", "auto"),
        ("transformers", "float32"),
        ("transformers", "bfloat16"),
    ]
    assert all(row["origin"] == "measured" and row["device"] for row in document["rows"])
    assert document["loads"] == [{"system": "labkit", "dtype": "auto", "load_seconds": 1.5, "peak_memory_bytes": 2**29}]


class StubbedModel:
    """Generates the right number of tokens; the clock says 1 s for the prefill and 0.25 s for each token after it."""

    def __init__(self, clock: list[float], seconds_per_token: float = 0.25, stops_early: bool = False) -> None:
        self.config = llama().config
        self.generation_config = llama().generation_config
        self.clock, self.seconds_per_token, self.stops_early = clock, seconds_per_token, stops_early
        self.calls: list[dict[str, Any]] = []

    def generate(self, **settings: Any) -> None:
        assert torch.is_inference_mode_enabled() and self.generation_config.eos_token_id is None
        self.calls.append(settings)
        ids, [criterion] = settings["input_ids"], settings["stopping_criteria"]
        for token in range(settings["max_new_tokens"] - self.stops_early):
            self.clock[0] += self.seconds_per_token if token else 1.0
            assert criterion(ids, None).tolist() == [False] * len(ids)


def _stubbed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[StubbedModel, TransformersSubject]:
    clock = [0.0]
    monkeypatch.setattr("labkit.bench.peer_subject.time.perf_counter", lambda: clock[0])
    model = StubbedModel(clock, **settings)
    return model, TransformersSubject(model, "stub", "float32")


def test_the_first_token_parts_prefill_from_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, subject = _stubbed(monkeypatch)
    timing = subject.time([[1, 2, 3], [4, 5, 6]], decode_tokens=8)
    assert (timing.prefill_s, timing.decode_s, timing.ttft_s, timing.tpot_s) == (1.0, 2.0, 1.0, 0.25)
    assert [call["max_new_tokens"] for call in model.calls] == [9]
    for call in model.calls:
        assert call["min_new_tokens"] == call["max_new_tokens"]
        assert call["use_cache"] is True and call["do_sample"] is False
        assert call["input_ids"].tolist() == [[1, 2, 3], [4, 5, 6]] and call["attention_mask"].all()


def test_a_generation_that_stops_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, subject = _stubbed(monkeypatch, stops_early=True)
    with pytest.raises(UnusableTimingError, match="early"):
        subject.time([[1, 2]], 4)
    with pytest.raises(BenchStopped):
        subject.time([[1, 2]], 4, should_stop=lambda: True)


def test_a_context_beyond_the_positions_is_a_problem() -> None:
    subject = TransformersSubject(llama(max_position_embeddings=64), "m", "float32")
    assert subject.problem(context=59, batch=1, decode_tokens=4) is None
    assert "64 positions" in str(subject.problem(context=60, batch=1, decode_tokens=4))


def _plain(path: Path) -> None:
    saved(llama(), path)


def _tied_qwen(path: Path) -> None:
    write_awq_checkpoint(path, qwen35(tie_word_embeddings=True), group_size=32)


def _awq(path: Path) -> None:
    write_awq_checkpoint(path, llama(), group_size=32)


def _gguf(path: Path) -> None:
    path.mkdir()
    write_gguf_llama(path / "m.gguf", llama(), gguf.GGMLQuantizationType.Q4_1)


@pytest.mark.parametrize("write", [_plain, _awq, _tied_qwen, _gguf])
def test_both_systems_have_the_same_weights(write: Any, seed: int, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "checkpoint", tmp_path / "scratch"
    scratch.mkdir()
    write(folder)
    path = folder / "m.gguf" if write is _gguf else folder
    plain = plain_checkpoint(path, scratch)
    assert (plain == path) == (write is _plain)
    model = load_peer(plain, torch.float32)
    assert not model.training
    ids = random_ids(160, 40)
    with LLM(path, dtype="float32") as llm:
        ours = llm.logits(ids)
    theirs = model(torch.tensor([ids])).logits[0]
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


def test_a_small_real_run_interleaves_all_three(seed: int, tmp_path: Path) -> None:
    path = saved(llama(), tmp_path)
    told: list[str] = []
    report = run_peer_transformers(
        path, [16, 1021], [1, 9], 3, 1, lambda *news: told.append(news[2]), dtype="float32", measure_loads=False
    )
    assert [(cell.labkit.context, cell.labkit.batch) for cell in report.cells] == [
        (16, 1),
        (16, 9),
        (1021, 1),
        (1021, 9),
    ]
    for cell in report.cells[:2]:
        assert [row.system for row in (cell.labkit, *cell.peers)] == ["labkit", "transformers", "transformers"]
        assert [row.dtype for row in cell.peers] == ["float32", "bfloat16"]
        assert cell.peer in cell.peers and cell.decode_ratio and cell.decode_ratio > 0
        assert {row.origin for row in (cell.labkit, *cell.peers)} == {cell.labkit.origin}
        assert cell.labkit.ceiling_share and cell.peer and cell.peer.ceiling_share is None
    too_long = report.cells[2:]
    assert all(row.error for cell in too_long for row in (cell.labkit, *cell.peers))
    assert told and not report.loads


def test_stop_keeps_finished_cells(seed: int, tmp_path: Path) -> None:
    cells: list[str] = []

    def progress(done: int, total: int, text: str) -> None:
        if text.endswith("measured"):
            cells.append(text)

    report = run_peer_transformers(
        saved(llama(), tmp_path), [8], [1, 2], 2, 1, progress, lambda: len(cells) == 1, measure_loads=False
    )
    assert [cell.labkit.batch for cell in report.cells] == [1]


def test_loads_are_measured_in_fresh_processes(seed: int, tmp_path: Path) -> None:
    """A process that starts with a large parent must not be charged for it."""
    path = saved(llama(), tmp_path)
    ballast = torch.ones(400 << 18)  # 400 MiB of this process
    before = peak_memory_bytes()
    threads = torch.get_num_threads()
    ours = measure_load("labkit", path, "float32", threads, kv_cache_dtype="int8", decode_batch_size=2)
    assert (ours.system, ours.dtype) == ("labkit", "float32")
    assert ours.load_seconds > 0 and ballast.nbytes < before
    assert 50 << 20 < ours.peak_memory_bytes < before


def test_a_load_names_the_dtype_that_ran(seed: int, tmp_path: Path) -> None:
    assert measure_load("labkit", saved(llama(), tmp_path), "auto", 1).dtype == "bfloat16"


def test_a_failed_load_tells_why(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match=r"config\.json"):
        measure_load("labkit", tmp_path, "float32", 1)


def test_load_costs_cover_both_systems(monkeypatch: pytest.MonkeyPatch, seed: int, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def fake(system: str, model: Any, dtype: str, threads: int, **settings: Any) -> LoadCost:
        asked.append((system, dtype, threads, settings))
        return LoadCost(system, dtype, 1.0, 1)

    monkeypatch.setattr(peer_module, "measure_load", fake)
    report = run_peer_transformers(saved(llama(), tmp_path), [8], [1], 2, 1, kv_cache_dtype="int8")
    threads = torch.get_num_threads()
    assert asked == [
        ("labkit", "auto", threads, {"kv_cache_dtype": "int8", "decode_batch_size": 1}),
        ("transformers", "float32", threads, {}),
        ("transformers", "bfloat16", threads, {}),
    ]
    assert [(load.system, load.dtype) for load in report.loads] == [call[:2] for call in asked]
    assert report.cells[0].labkit.kv_cache_dtype == "int8"


def test_without_transformers_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, seed: int, tmp_path: Path) -> None:
    path = saved(llama(), tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)  # importing it raises ImportError
    monkeypatch.setattr(peer_module, "measure_load", None)  # told before anything is measured
    with pytest.raises(MissingExtraError, match="pip install transformers"):
        run_peer_transformers(path, [8], [1], 2, 1)


def test_a_model_that_is_none_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        run_peer_transformers(tmp_path / "nothing")


def test_an_architecture_that_transformers_lacks_is_a_typed_error(seed: int, tmp_path: Path) -> None:
    folder, scratch = tmp_path / "checkpoint", tmp_path / "scratch"
    write_awq_checkpoint(folder, llama(), group_size=32)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nonesuch"}))
    with pytest.raises(UnsupportedModelError, match="nonesuch"):
        plain_checkpoint(folder, scratch)
