"""The shapes that tuning measures are those that the loader makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.models import llama, qwen35
from helpers.packers import write_awq_checkpoint

from labkit import LLM
from labkit.bench.matrices import FORMATS, model_shapes, parse_shape
from labkit.errors import ConfigError, ModelNotFoundError
from labkit.ops.linear_kernels import KernelLinear
from labkit.ops.tuning_table import WeightShape

BIG = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64}


def shapes_of(path: Path | str) -> set[WeightShape]:
    """Of the linear layers that the engine makes."""
    with LLM(path, executor="sim") as llm:
        linears = llm.engine.runner.model.linears.values()
        return {linear.shape for linear in linears if isinstance(linear, KernelLinear)}


def half_valued(model: Any) -> Any:
    """The same with weights that fp16 holds: one that it rounds to 0 would keep its matrix in fp32."""
    for weight in model.parameters():
        weight.copy_(weight.half())
    return model


@pytest.mark.parametrize("skip", [(), ("q_proj", "layers.0.", "up_proj")], ids=["all", "mixed"])
def test_shapes_of_a_quantized_llama(skip: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    write_awq_checkpoint(tmp_path, half_valued(llama(**BIG)), group_size=32, skip=skip)
    found = model_shapes(str(tmp_path))
    assert len(set(found)) == len(found) and set(found) == shapes_of(tmp_path)
    assert {shape.kind for shape in found} == {"int4", "half"}


def test_shapes_of_a_quantized_qwen(seed: int, tmp_path: Path) -> None:
    model = half_valued(qwen35(**BIG, linear_num_value_heads=6, linear_key_head_dim=64, linear_value_head_dim=64))
    write_awq_checkpoint(tmp_path, model, group_size=32, skip=("in_proj_a", "in_proj_b"))
    assert set(model_shapes(str(tmp_path))) == shapes_of(tmp_path)


def test_shapes_of_a_tied_model(tiny_path: Path) -> None:
    assert set(model_shapes("labkit-tiny")) == shapes_of(tiny_path)


def test_two_ranks_share_a_large_model() -> None:
    whole, half = (model_shapes("Qwen3.5-27B", "g128-awq", ranks) for ranks in (1, 2))
    assert WeightShape("int4", 34816, 5120, 128) in whole and WeightShape("int4", 5120, 17408, 128) in whole
    assert set(half) == {
        WeightShape("int4", 8192, 5120, 128),  # GDN q, k, v and z
        WeightShape("half", 48, 5120, 0),  # GDN b and a
        WeightShape("int4", 5120, 3072, 128),  # output projections of GDN and attention
        WeightShape("int4", 17408, 5120, 128),
        WeightShape("int4", 5120, 8704, 128),
        WeightShape("int4", 7168, 5120, 128),  # attention: q with its gate, k, v
        WeightShape("half", 124160, 5120, 0),
    }


def test_groups_that_no_kernel_takes_are_left_out(seed: int, tmp_path: Path) -> None:
    write_awq_checkpoint(tmp_path, llama(**BIG), group_size=16)
    assert {shape.kind for shape in model_shapes(str(tmp_path))} == {"half"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_shape_as_it_is_written(name: str) -> None:
    shape = parse_shape(f"24x5120:{name}")
    assert (shape.outputs, shape.inputs) == (24, 5120)
    assert (shape.kind, shape.group) == FORMATS[name]


@pytest.mark.parametrize(
    "text",
    ["", "24", "24x5120", "24x5120:g16", "0x5120:fp16", "24x-1:fp16", "24x100:g64", "24 x 5120:g128", "axb:fp16"],
)
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_shape(text)
    assert "17408x5120:g128" in caught.value.cure


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="divided over 5"):
        model_shapes("Qwen3.5-27B", None, 5)
    with pytest.raises(ConfigError, match="Unknown weights"):
        model_shapes("Qwen3.5-27B", "g7")
    with pytest.raises(ModelNotFoundError):
        model_shapes("nowhere")
