"""Checkpoints written by compressed-tensors and transformers themselves, from the model to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from helpers.compressed_files import quantization_parameters, weight_args
from helpers.models import oracle_logits, random_ids
from helpers.uploads import small_qwen
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from labkit import LLM

LEFT_OUT = ["lm_head", "re:.*in_proj_[ab]"]


def written(directory: Path, model: Any, groups: dict[str, Any]) -> Any:
    """Quantize ``model``, compress it in place and save it, all by the libraries; returns it."""
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=LEFT_OUT), show_progress=False)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            args = scheme.weights
            scale, zero = quantization_parameters(module.weight, args.group_size, args.symmetric)
            module.weight_scale.copy_(scale)
            module.weight_zero_point.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(str(directory))
    return model


def group(size: int, symmetric: bool, *targets: str) -> dict[str, Any]:
    return {"targets": list(targets), "weights": weight_args(size, symmetric)}


def agrees(directory: Path, oracle: Any) -> None:
    ids = random_ids(160, 70)
    expected = oracle_logits(oracle, ids)
    with LLM(directory, dtype="float32") as llm:
        assert ((llm.logits(ids) - expected).norm() / expected.norm()).item() <= 1e-4


def test_mixed_groups(tmp_path: Path, seed: int) -> None:
    """The MLP symmetric in groups of 128, all else asymmetric in groups of 32; the library unpacks its own weights."""
    groups = {"a": group(128, True, "re:.*mlp.*"), "b": group(32, False, "Linear")}
    agrees(tmp_path, written(tmp_path, small_qwen(), groups))


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_as_transformers_loads_it(tmp_path: Path, size: int, symmetric: bool, seed: int) -> None:
    written(tmp_path, small_qwen(), {"a": group(size, symmetric, "Linear")})
    config = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, quantization_config=config)
    agrees(tmp_path, model.eval())
