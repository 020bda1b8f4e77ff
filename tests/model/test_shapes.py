"""A config that does not belong to the weights is found while loading, and so are tensors that nobody would use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35
from helpers.packers import own_state, write_safetensors

from labkit import LLM
from labkit.errors import CheckpointError, UnsupportedModelError

CHANGES: list[dict[str, Any]] = [
    {"num_attention_heads": 8},
    {"num_key_value_heads": 1},
    {"head_dim": 64},
    {"intermediate_size": 32},
    {"linear_num_value_heads": 4},
    {"linear_key_head_dim": 8},
    {"linear_conv_kernel_dim": 3},
    {"vocab_size": 170},
    {"hidden_size": 32},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_config_of_another_model(change: dict[str, Any], seed: int, tmp_path: Path) -> None:
    model = qwen35()
    write_safetensors(tmp_path, own_state(model), json.loads(model.config.to_json_string()) | change)
    with pytest.raises(CheckpointError, match=r"config\.json asks for"):
        LLM(tmp_path)


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.linear_attn.dt_bias", "layers.3.self_attn.k_norm.weight"])
def test_a_tensor_that_would_broadcast(name: str, seed: int, tmp_path: Path) -> None:
    model = qwen35()
    write_safetensors(tmp_path, own_state(model) | {f"model.{name}": torch.ones(1)}, model.config.to_dict())
    with pytest.raises(CheckpointError, match=name):
        LLM(tmp_path)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.bias", "lm_head.bias", "model.layers.7.foo.weight"])
def test_a_tensor_that_would_change_the_answer(name: str, seed: int, tmp_path: Path) -> None:
    model = llama()
    write_safetensors(tmp_path, own_state(model) | {name: torch.ones(64)}, model.config.to_dict())
    with pytest.raises(UnsupportedModelError, match=name):
        LLM(tmp_path)


def test_what_older_files_carry_along_is_only_noted(seed: int, tmp_path: Path) -> None:
    model = llama()
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    write_safetensors(tmp_path, own_state(model) | extra, model.config.to_dict())
    with LLM(tmp_path) as llm:
        assert "inv_freq" in str(llm.engine.checkpoint.report)
