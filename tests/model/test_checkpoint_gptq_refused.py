"""GPTQ and AutoRound modules that labkit does not read, or whose tensors and config do not agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gptq_files import AS_IS, MINUS_ONE, auto_round_config, gptq_config, gptq_module, quantize_symmetric
from helpers.one_module import MODULE, int4, refused, write_module
from helpers.packers import dequantize_rows, quantize_rows
from torch import Tensor

from labkit.errors import CheckpointError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("seed")

ROWS, COLS, GROUP = 48, 256, 64


def fields(**changes: Tensor | None) -> dict[str, Tensor | None]:
    """A module, some of its tensors replaced or (None) left out."""
    return dict(gptq_module(*quantize_rows(torch.randn(ROWS, COLS), GROUP))) | changes


def test_act_order_is_refused(tmp_path: Path) -> None:
    order = torch.arange(COLS).int() // GROUP
    order[[3, 100]] = order[[100, 3]]
    for desc_act in (True, False):
        checkpoint = write_module(tmp_path / str(desc_act), fields(g_idx=order), gptq_config(GROUP, desc_act=desc_act))
        refused(checkpoint, "act-order .g_idx is not in order", UnsupportedModelError)
    without = write_module(tmp_path / "none", fields(g_idx=None), gptq_config(GROUP, desc_act=True))
    refused(without, "act-order .desc_act. without its g_idx", UnsupportedModelError)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (gptq_config(GROUP, bits=8), "8 bits"),
        (gptq_config(GROUP, bits=3), "3 bits"),
        (gptq_config(GROUP, dynamic={".*up_proj": {"bits": 8}}), "8 bits"),
        (gptq_config(GROUP, checkpoint_format="marlin"), "checkpoint format marlin"),
        (gptq_config(GROUP, is_marlin_format=True), "checkpoint format marlin"),
        (gptq_config(GROUP, checkpoint_format="bitblas"), "checkpoint format bitblas"),
        (auto_round_config(GROUP, bits=2), "2 bits"),
        (auto_round_config(GROUP, data_type="mx_fp"), "data type mx_fp"),
        (auto_round_config(GROUP, packing_format="auto_round:llm_compressor"), "format auto_round:llm_compressor"),
        (auto_round_config(GROUP, packing_format="auto_round:fp8"), "packing format auto_round:fp8"),
        (auto_round_config(GROUP, extra_config={MODULE: {"bits": 16, "data_type": "float"}}), "16 bits"),
        ({"quant_method": "exl3"}, "method exl3"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    refused(write_module(tmp_path, fields(), config), named, UnsupportedModelError)


@pytest.mark.parametrize(
    ("config", "saying"),
    [
        (gptq_config(GROUP, dynamic=[1]), "dynamic in config.json is no JSON object"),
        (gptq_config(GROUP, dynamic={".*": 8}), "in config.json is no JSON object"),
        (gptq_config(GROUP, dynamic={"(": {}}), "no regular expression"),
        (auto_round_config(GROUP, extra_config={"*": {}}), "no regular expression"),
        (gptq_config(GROUP) | {"group_size": 64.0}, "gives the group size 64.0"),
    ],
)
def test_a_config_of_wrong_types(tmp_path: Path, config: dict[str, Any], saying: str) -> None:
    with pytest.raises(CheckpointError, match=saying) as caught:
        write_module(tmp_path, fields(), config).linear(MODULE)
    assert caught.value.cure


@pytest.mark.parametrize("written", [MINUS_ONE, AS_IS])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_a_symmetric_file_read_by_the_wrong_rule(tmp_path: Path, written: str, version: str) -> None:
    """7 in every nibble is 8 by one rule and 7 by the other: engines differ there, so labkit asks."""
    parts = quantize_symmetric(torch.randn(ROWS, COLS), GROUP)
    config = gptq_config(GROUP, sym=True, checkpoint_format=version)
    checkpoint = write_module(tmp_path, gptq_module(*parts, written), config)
    if (written == AS_IS) == (version == "gptq_v2"):
        assert torch.equal(int4(checkpoint).dequantize(), dequantize_rows(*parts))
    else:
        refused(checkpoint, f"symmetric, but it has a zero point of {9 if written == AS_IS else 7} where 8 is expected")


@pytest.mark.parametrize("field", ["qweight", "qzeros", "scales"])
def test_an_incomplete_module(tmp_path: Path, field: str) -> None:
    refused(write_module(tmp_path, fields(**{field: None}), gptq_config(GROUP)), rf"no tensor {MODULE}\.{field}")


INTS, HALVES = torch.int32, torch.float16


@pytest.mark.parametrize(
    "changes",
    [
        {"qweight": torch.zeros(COLS // 8, ROWS + 8, dtype=INTS)},
        {"qweight": torch.zeros(COLS, ROWS // 8, dtype=INTS)},
        {"qweight": torch.zeros(0, ROWS, dtype=INTS)},
        {"qzeros": torch.zeros(COLS // GROUP, ROWS // 8 + 1, dtype=INTS)},
        {"qzeros": torch.zeros(COLS // GROUP, dtype=INTS)},
        {"scales": torch.ones(COLS // GROUP, ROWS - 8, dtype=HALVES)},
        {"scales": torch.ones(0, ROWS, dtype=HALVES)},
    ],
)
def test_shapes_that_disagree(tmp_path: Path, changes: dict[str, Tensor]) -> None:
    refused(write_module(tmp_path, fields(**changes), gptq_config(GROUP)), "shapes that do not belong together")


def test_a_group_size_of_another_revision(tmp_path: Path) -> None:
    refused(write_module(tmp_path / "a", fields(), gptq_config(32)), "4 groups for 256 inputs")
    refused(
        write_module(tmp_path / "b", fields(), gptq_config(96)), "256 inputs, which do not divide into groups of 96"
    )
    longer = {"qweight": torch.zeros(COLS // 8 + 1, ROWS, dtype=INTS)}
    config = gptq_config() | {"group_size": None}
    refused(
        write_module(tmp_path / "c", fields(**longer), config), "264 inputs, .* of 66, which is no multiple of 8|66"
    )


def test_an_order_of_another_length(tmp_path: Path) -> None:
    order = {"g_idx": torch.zeros(COLS - 1, dtype=INTS)}
    refused(write_module(tmp_path, fields(**order), gptq_config(GROUP)), r"g_idx has the shape \[255\] for 256 inputs")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_scales_that_cannot_be(tmp_path: Path, bad: float) -> None:
    scales = torch.ones(COLS // GROUP, ROWS, dtype=HALVES)
    scales[2, 5] = bad
    refused(
        write_module(tmp_path, fields(scales=scales), gptq_config(GROUP)), rf"{MODULE}\.scales holds 1 (values|scales)"
    )


@pytest.mark.parametrize("field", ["qweight", "qzeros", "g_idx"])
def test_tensors_of_another_type(tmp_path: Path, field: str) -> None:
    changes = {field: torch.zeros(COLS // 8, ROWS, dtype=torch.int16)}
    checkpoint = write_module(tmp_path, fields(**changes), gptq_config(GROUP))
    refused(checkpoint, f"{field} has the data type I16", UnsupportedModelError)
