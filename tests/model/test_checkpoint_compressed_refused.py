"""compressed-tensors modules that labkit does not read, or whose tensors and config do not agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.compressed_files import group_config, packed_config, packed_module
from helpers.one_module import MODULE, int4, refused, write_module
from torch import Tensor

from labkit.errors import CheckpointError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("seed")


ROWS, COLS, GROUP = 44, 256, 64


def module(symmetric: bool = False) -> dict[str, Tensor | None]:
    return dict(packed_module(torch.randn(ROWS, COLS), GROUP, symmetric=symmetric)[0])


def config(symmetric: bool = False, **weights: Any) -> dict[str, Any]:
    return packed_config(group_config(GROUP, symmetric, **weights))


def test_a_module_that_no_group_names(tmp_path: Path) -> None:
    groups = packed_config(group_config(GROUP, False, ("re:.*attn.*", "Conv1d")))
    refused(write_module(tmp_path, module(), groups), "no group of quantization_config")


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_group_without_a_format_takes_the_outer_one(tmp_path: Path, symmetric: bool) -> None:
    settings = config(symmetric)
    del settings["config_groups"]["group_0"]["format"]
    assert int4(write_module(tmp_path / "a", module(symmetric), settings)).shape == (ROWS, COLS)
    refused(
        write_module(tmp_path / "b", module(), settings | {"format": "marlin-24"}),
        "format marlin-24",
        UnsupportedModelError,
    )


ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weights": {"num_bits": 8}}, "num_bits 8"),
        ({"weights": {"type": "float"}}, "type float"),
        ({"weights": {"strategy": "channel", "group_size": -1}}, "strategy channel"),
        ({"weights": {"strategy": "tensor_group"}}, "strategy tensor_group"),
        ({"weights": {"dynamic": True}}, "dynamic True"),
        ({"group": {"input_activations": ACTIVATIONS}}, "quantized input activations"),
        ({"group": {"output_activations": ACTIVATIONS}}, "quantized output activations"),
        ({"group": {"format": "nvfp4-pack-quantized"}}, "format nvfp4-pack-quantized"),
        ({"group": {"format": "float-quantized"}}, "format float-quantized"),
        ({"outer": {"transform_config": {"config_groups": {"u": {}}}}}, "transform_config"),
        ({"outer": {"sparsity_config": {"format": "sparse-24-bitmask"}}}, "sparsity format sparse-24-bitmask"),
        ({"outer": {"quant_method": "gptq"}}, "method gptq"),
        ({"weights": {"actorder": "group"}}, "act-order by group, without its weight_g_idx"),
    ],
)
def test_other_schemes_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    settings = config(**changes.get("weights", {})) | changes.get("outer", {})
    settings["config_groups"]["group_0"] |= changes.get("group", {})
    refused(write_module(tmp_path, module(), settings), named, UnsupportedModelError)


def test_without_a_config(tmp_path: Path) -> None:
    refused(write_module(tmp_path, module(), {}), "method unknown", UnsupportedModelError)


@pytest.mark.parametrize(
    ("settings", "saying"),
    [
        (packed_config("W4A16"), "group_0 in config.json is no JSON object"),
        (packed_config({"targets": "Linear"}), "targets in quantization_config is no list"),
        (packed_config(group_config(GROUP, False, ("re:(",))), "no regular expression"),
        (config(group_size="64"), "gives the group size '64'"),
        (config(group_size=None), "the group size None"),
        (config(group_size=True), "gives the group size True"),
        (config() | {"config_groups": [1]}, "config_groups in config.json is no JSON object"),
    ],
)
def test_a_config_of_wrong_types(tmp_path: Path, settings: dict[str, Any], saying: str) -> None:
    with pytest.raises(CheckpointError, match=saying) as caught:
        write_module(tmp_path, module(), settings).linear(MODULE)
    assert caught.value.cure


@pytest.mark.parametrize("length", [COLS, COLS - 1])
def test_act_order_is_refused(tmp_path: Path, length: int) -> None:
    order = torch.randperm(COLS)[:length] // GROUP if length == COLS else torch.arange(length) // GROUP
    refused(
        write_module(tmp_path, module() | {"weight_g_idx": order.int()}, config()), "act-order", UnsupportedModelError
    )


@pytest.mark.parametrize("field", ["weight_packed", "weight_scale", "weight_shape", "weight_zero_point"])
def test_an_incomplete_module(tmp_path: Path, field: str) -> None:
    refused(write_module(tmp_path, module() | {field: None}, config()), rf"no tensor {MODULE}\.{field}")


def test_zero_points_where_none_belong(tmp_path: Path) -> None:
    refused(
        write_module(tmp_path, module(symmetric=False), config(symmetric=True)),
        "symmetric, but it has a weight_zero_point",
    )


INTS, HALVES = torch.int32, torch.float16


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_packed": torch.zeros(ROWS, COLS // 8 - 1, dtype=INTS)},
        {"weight_packed": torch.zeros(ROWS + 8, COLS // 8, dtype=INTS)},
        {"weight_packed": torch.zeros(COLS, dtype=INTS)},
        {"weight_scale": torch.ones(ROWS, COLS // GROUP + 1, dtype=HALVES)},
        {"weight_scale": torch.ones(ROWS - 1, COLS // GROUP, dtype=HALVES)},
        {"weight_scale": torch.ones(ROWS, 0, dtype=HALVES)},
        {"weight_zero_point": torch.zeros(ROWS // 8, COLS // GROUP, dtype=INTS)},
        {"weight_zero_point": torch.zeros(ROWS // 8 + 1, COLS // GROUP - 1, dtype=INTS)},
        {"weight_shape": torch.tensor([ROWS, COLS - 8])},
        {"weight_shape": torch.tensor([COLS, ROWS])},
        {"weight_shape": torch.tensor([0, 0])},
        {"weight_shape": torch.tensor([-ROWS, -COLS])},
    ],
)
def test_shapes_that_disagree(tmp_path: Path, changes: dict[str, Tensor]) -> None:
    refused(write_module(tmp_path, module() | changes, config()), "shapes that do not belong together")


def test_weight_shape_with_three_numbers(tmp_path: Path) -> None:
    changes = {"weight_shape": torch.tensor([1, ROWS, COLS])}
    refused(write_module(tmp_path, module() | changes, config()), r"weight_shape does not hold two numbers")


@pytest.mark.parametrize(
    ("size", "saying"),
    [(96, "256 inputs, which do not divide into groups of 96"), (32, "not the group size 32"), (128, "not the group")],
)
def test_a_group_size_of_another_revision(tmp_path: Path, size: int, saying: str) -> None:
    refused(write_module(tmp_path, module(), config(group_size=size)), saying)


def test_groups_that_cut_words(tmp_path: Path) -> None:
    fields, _ = packed_module(torch.randn(8, 24), 12, symmetric=True)
    refused(write_module(tmp_path, fields, packed_config(group_config(12, True))), "no multiple of 8")


@pytest.mark.parametrize(
    ("field", "value", "saying"),
    [
        ("weight_packed", torch.zeros(ROWS, COLS // 8, dtype=torch.int64), "weight_packed has the data type I64"),
        (
            "weight_zero_point",
            torch.zeros(ROWS, COLS // GROUP, dtype=torch.int8),
            "weight_zero_point has the data type I8",
        ),
        ("weight_scale", torch.ones(ROWS, COLS // GROUP).to(torch.float8_e4m3fn), "weight_scale has the data type F8"),
    ],
)
def test_tensors_of_another_type(tmp_path: Path, field: str, value: Tensor, saying: str) -> None:
    refused(write_module(tmp_path, module() | {field: value}, config()), saying, UnsupportedModelError)


def test_fp8_weights_are_named(tmp_path: Path) -> None:
    fields = {"weight": torch.ones(8, 32).to(torch.float8_e4m3fn), "weight_scale": torch.ones(8, 1)}
    settings = packed_config(group_config(32, True)) | {"format": "float-quantized"}
    refused(write_module(tmp_path, fields, settings), "data type F8_E4M3", UnsupportedModelError)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_scales_that_cannot_be(tmp_path: Path, value: float) -> None:
    saying = "2 values that are NaN or infinite" if value else "2 scales that are 0"
    scale = torch.ones(ROWS, COLS // GROUP, dtype=torch.bfloat16)
    scale[3, 1] = scale[40, 2] = value
    checkpoint = write_module(tmp_path, module() | {"weight_scale": scale}, config())
    refused(checkpoint, rf"{MODULE}\.weight_scale holds {saying}")
