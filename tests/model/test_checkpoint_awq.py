"""AutoAWQ checkpoints: per-module decision, slices, and triplets that do not agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gptq_files import auto_round_config
from helpers.one_module import MODULE, int4, refused, write_module
from helpers.packers import (
    awq_config,
    awq_triplet,
    dequantize_rows,
    quantize_rows,
    write_awq_checkpoint,
    write_safetensors,
)
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint import Checkpoint, open_checkpoint
from labkit.quant.int4 import Int4Weight

pytestmark = pytest.mark.usefixtures("seed")

ROWS, COLS, GROUP = 48, 256, 64


def write(directory: Path, changes: dict[str, torch.Tensor | None], quantization: Any) -> Checkpoint:
    """One quantized module, some of its tensors replaced or (None) left out."""
    fields = awq_triplet(*quantize_rows(torch.randn(ROWS, COLS), GROUP))
    return write_module(directory, fields | changes, quantization)


def plain_config(**changes: Any) -> dict[str, Any]:
    return awq_config(GROUP, **changes)


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_a_whole_model_mixed_by_module(tmp_path: Path, group_size: int, prefix: str) -> None:
    config = LlamaConfig(
        vocab_size=96, hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    expected = write_awq_checkpoint(tmp_path, model, group_size=group_size, skip=("layers.1.self_attn",), prefix=prefix)
    checkpoint = open_checkpoint(tmp_path)
    kinds = {}
    for name, dense in expected.items():
        module = name.removesuffix(".weight")
        if dense.ndim == 2 and "embed" not in name:
            weight = checkpoint.linear(module)
            kinds[module] = type(weight)
            assert torch.equal(weight.dequantize() if isinstance(weight, Int4Weight) else weight, dense)
        else:
            assert torch.equal(checkpoint.tensor(name), dense)
    assert kinds["model.layers.0.self_attn.q_proj"] is kinds["model.layers.1.mlp.up_proj"] is Int4Weight
    assert kinds["model.layers.1.self_attn.q_proj"] is kinds["lm_head"] is torch.Tensor
    assert not checkpoint.unused() and not checkpoint.report.notes


@pytest.mark.parametrize("rows", [None, slice(0, 8), slice(16, 40), slice(3, 21), slice(47, 48)])
@pytest.mark.parametrize("cols", [None, slice(64, 192), slice(192, 256)])
def test_slices(tmp_path: Path, rows: slice | None, cols: slice | None) -> None:
    whole = write(tmp_path, {}, plain_config()).linear(MODULE)
    checkpoint = open_checkpoint(tmp_path)
    part = checkpoint.linear(MODULE, rows=rows, cols=cols)
    assert isinstance(whole, Int4Weight) and isinstance(part, Int4Weight)
    assert torch.equal(part.dequantize(), whole.dequantize()[rows or slice(None), cols or slice(None)])
    if rows is not None:
        assert checkpoint.bytes_read < checkpoint.total_bytes


def test_slices_that_cut_a_group(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {}, plain_config())
    with pytest.raises(CheckpointError, match="cut a quantization group of 64"):
        checkpoint.linear(MODULE, cols=slice(0, 96))


def test_one_group_per_row(tmp_path: Path) -> None:
    parts = quantize_rows(torch.randn(8, 64), 64)
    config = {"text_config": {"quantization_config": awq_config(-1)}}
    write_safetensors(tmp_path, {f"{MODULE}.{k}": v for k, v in awq_triplet(*parts).items()}, config)
    weight = open_checkpoint(tmp_path).linear(MODULE)
    assert isinstance(weight, Int4Weight) and torch.equal(weight.dequantize(), dequantize_rows(*parts))


@pytest.mark.parametrize("field", ["qweight", "qzeros", "scales"])
def test_incomplete_triplets(tmp_path: Path, field: str) -> None:
    refused(write(tmp_path, {field: None}, plain_config()), rf"no tensor {MODULE}\.{field}")


INTS, HALVES = torch.int32, torch.float16


@pytest.mark.parametrize(
    "changes",
    [
        {"qweight": torch.zeros(COLS, ROWS // 8 + 1, dtype=INTS)},
        {"qweight": torch.zeros(COLS, dtype=INTS)},
        {"qzeros": torch.zeros(COLS // GROUP + 1, ROWS // 8, dtype=INTS)},
        {"qzeros": torch.zeros(COLS // GROUP, ROWS // 8 - 1, dtype=INTS)},
        {"scales": torch.ones(COLS // GROUP, ROWS - 8, dtype=HALVES)},
        {"scales": torch.ones(COLS // GROUP * 2, ROWS, dtype=HALVES)},
        {"scales": torch.ones(ROWS, dtype=HALVES)},
        {"scales": torch.ones(0, ROWS, dtype=HALVES)},
    ],
)
def test_shapes_that_disagree(tmp_path: Path, changes: dict[str, torch.Tensor | None]) -> None:
    refused(write(tmp_path, changes, plain_config()), f"{MODULE} has shapes that do not belong together")


def test_group_size_of_another_revision(tmp_path: Path) -> None:
    longer = {"qweight": torch.zeros(COLS + 64, ROWS // 8, dtype=INTS)}
    refused(write(tmp_path / "a", longer, plain_config()), "4 groups for 320 inputs, which is not the group size 64")
    refused(write(tmp_path / "b", {}, awq_config(32)), "not the group size 32")


@pytest.mark.parametrize(
    ("config", "saying"),
    [
        ({"quantization_config": awq_config() | {"group_size": "64"}}, "gives the group size '64'"),
        ({"quantization_config": "awq"}, "quantization_config in config.json is no JSON object"),
        ({"text_config": [1]}, "text_config in config.json is no JSON object"),
    ],
)
def test_a_config_of_wrong_types(tmp_path: Path, config: dict[str, Any], saying: str) -> None:
    fields = awq_triplet(*quantize_rows(torch.randn(ROWS, COLS), GROUP))
    write_safetensors(tmp_path, {f"{MODULE}.{field}": tensor for field, tensor in fields.items()}, config)
    with pytest.raises(CheckpointError, match=saying) as caught:
        open_checkpoint(tmp_path).linear(MODULE)
    assert caught.value.cure


def test_a_module_in_two_formats(tmp_path: Path) -> None:
    refused(write(tmp_path, {"weight": torch.ones(ROWS, COLS)}, plain_config()), "in two formats: weight and qweight")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (plain_config(version="gemv"), "version gemv"),
        (plain_config(version="GEMV_FAST"), "version gemv_fast"),
        (plain_config(bits=8), "8 bits"),
        (plain_config(bits="8"), "8 bits"),
        (plain_config(bits=[4]), r"\[4\] bits"),
        (plain_config(quant_method="quark"), "method quark"),
        (plain_config(quant_method="auto-round"), "method auto-round, packing format unknown"),
        ({}, "method unknown"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    refused(write(tmp_path, {}, config), named, UnsupportedModelError)


def test_version_in_capitals_is_the_same(tmp_path: Path) -> None:
    assert isinstance(write(tmp_path, {}, plain_config(version="GEMM")).linear(MODULE), Int4Weight)


def test_bits_as_text_are_the_same(tmp_path: Path) -> None:
    assert isinstance(write(tmp_path, {}, plain_config(bits="4")).linear(MODULE), Int4Weight)


def test_gptq_is_not_awq(tmp_path: Path) -> None:
    """The two pack qweight along different axes: a config of the other method does not fit the shapes."""
    refused(write(tmp_path, {}, plain_config(quant_method="gptq")), "shapes that do not belong together")


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_round:awq", "auto_round:awq:gemm"])
def test_auto_round_in_this_format(tmp_path: Path, packing: str) -> None:
    parts = quantize_rows(torch.randn(ROWS, COLS), GROUP)
    rules = {MODULE: {"group_size": GROUP}, "model.layers.1.mlp.up_proj": {"bits": 8}}
    config = auto_round_config(32, packing_format=packing, sym=False, extra_config=rules)
    assert torch.equal(int4(write_module(tmp_path, awq_triplet(*parts), config)).dequantize(), dequantize_rows(*parts))


def test_outputs_that_do_not_fill_words(tmp_path: Path) -> None:
    """AutoAWQ packs eight outputs to a word and leaves other matrices dense."""
    changes = {"scales": torch.ones(COLS // GROUP, ROWS - 4, dtype=HALVES)}
    refused(write(tmp_path, changes, plain_config()), "44 outputs, which do not fill whole words")


def test_inputs_that_do_not_divide(tmp_path: Path) -> None:
    refused(write(tmp_path, {}, awq_config(96)), "256 inputs, which do not divide into groups of 96")


def test_packed_tensors_of_another_type(tmp_path: Path) -> None:
    changes = {"qweight": torch.zeros(COLS, ROWS // 8, dtype=torch.int16)}
    refused(write(tmp_path, changes, plain_config()), r"qweight has the data type I16", UnsupportedModelError)


@pytest.mark.parametrize(("bad", "what"), [(np.nan, "values"), (np.inf, "values"), (0.0, "scales that are 0")])
def test_scales_that_cannot_be(tmp_path: Path, bad: float, what: str) -> None:
    scales = torch.ones(COLS // GROUP, ROWS, dtype=HALVES)
    scales[2, 5] = bad
    refused(write(tmp_path, {"scales": scales}, plain_config()), rf"{MODULE}\.scales holds 1 {what}")
