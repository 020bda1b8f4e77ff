"""The same weights give the same files, however the source keeps them: in bfloat16, or inside a vision wrapper."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import assert_same_logits, llama, qwen35, random_ids
from helpers.quantizing import SMALL, files_of, model_on_disk
from safetensors.torch import load_file, save_file
from torch import Tensor

from labkit import LLM
from labkit.awq.quantize import quantize
from labkit.model.checkpoint import open_checkpoint

VISION = {
    "model.visual.patch_embed.proj.weight": torch.ones(4, 3, 2, 2, 2),
    "model.visual.blocks.0.attn.qkv.weight": torch.ones(48, 16),
}


def _copy(source: Path, folder: Path, tensors: dict[str, Tensor]) -> Path:
    """The model with other tensors."""
    shutil.copytree(source, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(params=[(llama, False), (llama, True), (qwen35, False), (qwen35, True)])
def source(seed: int, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An fp32 file whose values bfloat16 holds; the head is tied in every second."""
    make, tied = request.param
    folder = model_on_disk(make, tmp_path / "fp32", tie_word_embeddings=tied)
    rounded = {name: value.bfloat16().float() for name, value in load_file(folder / "model.safetensors").items()}
    return _copy(folder, tmp_path / "source", rounded)


def test_bfloat16(source: Path, tmp_path: Path) -> None:
    halved = {name: value.bfloat16() for name, value in load_file(source / "model.safetensors").items()}
    from_bf16 = quantize(_copy(source, tmp_path / "bf16", halved), tmp_path / "b", SMALL)
    from_fp32 = quantize(source, tmp_path / "f", SMALL)
    assert files_of(from_bf16.out) == files_of(from_fp32.out)
    assert from_bf16.source_bytes * 2 == from_fp32.source_bytes
    assert ("lm_head.weight" in open_checkpoint(from_bf16.out).names()) == ("lm_head.weight" in halved)


def _wrapped(name: str) -> str:
    return f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name


def _in_wrapper(source: Path, folder: Path) -> Path:
    """The model as a vision-language checkpoint has it: names, config, and tensors of the tower."""
    tensors = {_wrapped(name): value for name, value in load_file(source / "model.safetensors").items()}
    _copy(source, folder, tensors | VISION)
    text: dict[str, Any] = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(outer | {"text_config": text, "image_token_id": 5}))
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_vision_wrapper(seed: int, tmp_path: Path, tied: bool) -> None:
    source = model_on_disk(qwen35, tmp_path / "source", tie_word_embeddings=tied)
    plain = quantize(source, tmp_path / "plain", SMALL)
    report = quantize(_in_wrapper(source, tmp_path / "wrapped"), tmp_path / "out", SMALL)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (plain.out, report.out)]
    assert weights[0] == weights[1] and report.source_bytes == plain.source_bytes
    assert any("2 vision tensors skipped" in note for note in report.notes)
    config = json.loads((report.out / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"] and "vision_config" not in config
    ids, logits = random_ids(200, 30), []
    for folder in (plain.out, report.out):
        with LLM(folder, dtype="float32") as llm:
            logits.append(llm.logits(ids))
    assert_same_logits(logits[0], logits[1], 1e-6)
