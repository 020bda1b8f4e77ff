"""The written model is the one that was meant: read by labkit, by transformers, and resumed to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import assert_same_logits, llama, oracle_logits, qwen35, random_ids
from helpers.quantizing import SMALL, dense_state, files_of, model_on_disk
from transformers import AutoModelForCausalLM, AutoTokenizer

from labkit import LLM
from labkit.awq.quantize import quantize
from labkit.awq.settings import FORMATS, QuantizeSettings
from labkit.bench.perplexity import compare
from labkit.bench.texts import DEFAULT_TEXT
from labkit.model.checkpoint import open_checkpoint

ARCHITECTURES = [llama, qwen35]


def _changed(**changes: Any) -> QuantizeSettings:
    return QuantizeSettings(**{**SMALL.to_dict(), **changes})


def _ours(folder: Path, ids: list[int]) -> torch.Tensor:
    with LLM(folder, dtype="float32") as llm:
        return llm.logits(ids)


def _dense_oracle(source: Path, out: Path, dtype: torch.dtype, ids: list[int]) -> torch.Tensor:
    """transformers' logits on the weights that ``out`` stands for."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    state = dense_state(open_checkpoint(out), dtype)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return oracle_logits(model, ids)


@pytest.mark.parametrize("make", ARCHITECTURES)
@pytest.mark.parametrize("file_format", FORMATS)
def test_labkit_reads_what_was_written(seed: int, tmp_path: Path, make: Any, file_format: str) -> None:
    source = model_on_disk(make, tmp_path / "source")
    report = quantize(source, tmp_path / "out", _changed(format=file_format))
    ids = random_ids(200, 60)
    assert_same_logits(_ours(report.out, ids), _dense_oracle(source, report.out, torch.float32, ids))
    assert report.bytes < report.source_bytes / 2 and report.resumed == 0
    assert not (report.out / ".partial").exists()


@pytest.mark.parametrize("make", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_compressed_tensors(seed: int, tmp_path: Path, make: Any, tied: bool) -> None:
    """It dequantizes in the precision of the scales: to the weights that labkit reads, rounded to half."""
    source = model_on_disk(make, tmp_path / "source", tie_word_embeddings=tied)
    out = quantize(source, tmp_path / "out", _changed(format="compressed-tensors")).out
    ids = random_ids(200, 60)
    theirs = oracle_logits(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), ids)
    assert_same_logits(theirs, _dense_oracle(source, out, torch.float16, ids))
    assert AutoTokenizer.from_pretrained(out)("the cat")["input_ids"]


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_both_formats_hold_the_same_model(seed: int, tmp_path: Path, make: Any) -> None:
    source = model_on_disk(make, tmp_path / "source")
    states = []
    for file_format in FORMATS:
        out = quantize(source, tmp_path / file_format, _changed(format=file_format)).out
        states.append(dense_state(open_checkpoint(out)))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_awq_stays_nearer_to_the_model_than_rounding(seed: int, tmp_path: Path, make: Any) -> None:
    """Three models together: of one alone AWQ may keep little (0.40 to 0.88 of the loss over some thirty models)."""
    lost = {"rtn": 0.0, "awq": 0.0}
    for number in range(3):
        source = model_on_disk(make, tmp_path / f"source-{number}")
        for method in lost:
            out = quantize(source, tmp_path / f"{method}-{number}", _changed(method=method)).out
            lost[method] += _mean_kl(out, source)
    assert 0 < lost["awq"] < 0.9 * lost["rtn"], lost


def _mean_kl(model: Path, exact: Path) -> float:
    with LLM(model, dtype="float32") as ours, LLM(exact, dtype="float32") as reference:
        return compare(ours, reference, DEFAULT_TEXT.read_text(), max_tokens=200, window=100, stride=50).mean_kl


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_skipped_modules_keep_their_values(seed: int, tmp_path: Path, make: Any) -> None:
    source = model_on_disk(make, tmp_path / "source")
    settings = _changed(skip=(r"layers\.0\.", "down_proj"), method="rtn")
    report = quantize(source, tmp_path / "out", settings)
    before, after = open_checkpoint(source), open_checkpoint(report.out)
    kept = [name for name in report.kept if name != "lm_head"]
    assert any("layers.1.mlp.down_proj" in name for name in kept) and "lm_head" in report.kept
    assert all(torch.equal(after.tensor(f"{name}.weight").float(), before.tensor(f"{name}.weight")) for name in kept)
    assert not any(name.startswith("model.layers.0.") and "qweight" in name for name in after.names())
    config = json.loads((report.out / "config.json").read_text())
    assert config["quantization_config"]["modules_to_not_convert"] == list(report.kept)
    assert set(report.quantized).isdisjoint(report.kept)


def test_the_gates_of_gated_deltanet_stay_in_16_bits(seed: int, tmp_path: Path) -> None:
    source = model_on_disk(qwen35, tmp_path / "source", linear_num_value_heads=8)
    report = quantize(source, tmp_path / "out", SMALL)
    gates = {f"model.layers.{layer}.linear_attn.in_proj_{name}" for layer in range(3) for name in "ab"}
    assert set(report.kept) == gates | {"lm_head"}
    assert len(report.quantized) == 3 * 6 + 7


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_modules_that_do_not_fit_stay_in_16_bits(seed: int, tmp_path: Path, make: Any) -> None:
    """96 inputs of down_proj are no whole groups of 64; the model runs all the same."""
    source = model_on_disk(make, tmp_path / "source")
    report = quantize(source, tmp_path / "out", _changed(group_size=64))
    down = [name for name in report.kept if "down_proj" in name]
    assert len(down) == open_checkpoint(source).config["num_hidden_layers"]
    assert any("stay 16-bit" in note and "groups of 64. A smaller --group-size" in note for note in report.notes)
    assert not quantize(source, tmp_path / "fits", _changed(method="rtn", skip=("down",))).notes


def test_a_pattern_that_skips_nothing_is_told(seed: int, tmp_path: Path) -> None:
    source = model_on_disk(llama, tmp_path / "source")
    report = quantize(source, tmp_path / "out", _changed(method="rtn", skip=("dwon_proj", r"layers\.0\.mlp")))
    (note,) = report.notes
    assert note.startswith("--skip 'dwon_proj' changed nothing")
    ids = random_ids(200, 30)
    assert_same_logits(_ours(report.out, ids), _dense_oracle(source, report.out, torch.float32, ids))


@pytest.mark.parametrize("shard", [60_000, 1])
def test_large_models_come_in_shards(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: int) -> None:
    source = model_on_disk(llama, tmp_path / "source")
    whole = quantize(source, tmp_path / "whole", SMALL).out
    monkeypatch.setattr("labkit.awq.folder.SHARD_BYTES", shard)
    parts = quantize(source, tmp_path / "parts", SMALL).out
    assert len(list(parts.glob("model-*-of-*.safetensors"))) > 2 and not (parts / "model.safetensors").exists()
    ours, theirs = dense_state(open_checkpoint(parts)), dense_state(open_checkpoint(whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_same_run_gives_the_same_bytes(seed: int, tmp_path: Path) -> None:
    source = model_on_disk(qwen35, tmp_path / "source")
    first, second = (files_of(quantize(source, tmp_path / name, SMALL).out) for name in "ab")
    assert first == second and "model.safetensors" in first
