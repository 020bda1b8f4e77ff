"""GPTQ checkpoints, AutoRound's among them: zero points, slices, rules for single modules, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.gptq_files import (
    AS_IS,
    MINUS_ONE,
    WORDS_MINUS_ONES,
    auto_round_config,
    gptq_config,
    gptq_module,
)
from helpers.one_module import MODULE, int4, write_module
from helpers.packers import dequantize_rows, quantize_rows
from torch import Tensor

from labkit.model.checkpoint import open_checkpoint

pytestmark = pytest.mark.usefixtures("seed")

ROWS, COLS, GROUP = 48, 256, 64
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]

BY_GPTQMODEL = {"quantizer": ["gptqmodel:5.0.0"], "uri": "https://github.com/modelcloud/gptqmodel"}
CONVENTIONS = [
    (gptq_config, {}, MINUS_ONE, 1, 16),
    (gptq_config, {"checkpoint_format": "gptq"}, MINUS_ONE, 1, 16),
    (gptq_config, {"checkpoint_format": "gptq_v2", "meta": BY_GPTQMODEL}, AS_IS, 0, 15),
    (gptq_config, {"checkpoint_format": "gptq", "meta": BY_GPTQMODEL}, WORDS_MINUS_ONES, 0, 15),
    (auto_round_config, {"sym": False}, MINUS_ONE, 1, 16),
    (auto_round_config, {"sym": False, "packing_format": "auto_round"}, AS_IS, 0, 15),
    (
        auto_round_config,
        {"sym": False, "packing_format": None, "backend": "auto_round:gptq:exllamav2"},
        MINUS_ONE,
        1,
        16,
    ),
]


def random_parts(rows: int, groups: int, size: int, low: int = 0, high: int = 15) -> Parts:
    """q in 0..15, z from ``low`` to ``high``, and scales of either sign, as AutoRound has them."""
    q = np.random.randint(0, 16, (rows, groups * size))
    scale = np.random.uniform(1e-3, 1, (rows, groups)) * np.random.choice([-1, 1], (rows, groups))
    return q, np.random.randint(low, high + 1, (rows, groups)), scale.astype(np.float16)


def fields(**changes: Tensor | None) -> dict[str, Tensor | None]:
    """A module, some of its tensors replaced or (None) left out."""
    return dict(gptq_module(*quantize_rows(torch.randn(ROWS, COLS), GROUP))) | changes


@pytest.fixture(autouse=True)
def _numpy_seed(seed: int) -> None:
    np.random.seed(seed)


@pytest.mark.parametrize(("make", "changes", "written", "low", "high"), CONVENTIONS)
@pytest.mark.parametrize("size", [32, 64, 128])
def test_zero_points_and_slices(
    tmp_path: Path, make: Any, changes: dict[str, Any], written: str, low: int, high: int, size: int
) -> None:
    """Every zero point that the convention can write, the borrowing 0 among them; rows that cut words."""
    for number in range(3):
        rows, groups = random.choice([1, 8, 21, 48]), random.randint(1, 4)
        parts = random_parts(rows, groups, size, low, high)
        directory, exact = tmp_path / str(number), dequantize_rows(*parts)
        tensors = gptq_module(*parts, written, order=random.random() < 0.5)
        checkpoint = write_module(directory, tensors, make(size, **changes))
        whole = int4(checkpoint)
        assert (whole.shape, whole.group_size, whole.form) == (tuple(exact.shape), size, "scale_zero")
        assert torch.equal(whole.dequantize(), exact) and not checkpoint.unused()
        for _ in range(5):
            first, left = random.randrange(rows), random.randrange(groups)
            part = slice(first, random.randint(first + 1, rows))
            cols = slice(left * size, random.randint(left + 1, groups) * size)
            assert torch.equal(int4(open_checkpoint(directory), rows=part, cols=cols).dequantize(), exact[part, cols])


def test_a_word_by_hand(tmp_path: Path) -> None:
    """Nibble j of a word is input j; zero points 1..8 of eight outputs are stored as 0..7."""
    tensors = {
        "qweight": torch.tensor([[0x76543210] * 8], dtype=torch.int32),
        "qzeros": torch.tensor([[0x76543210]], dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    weight = int4(write_module(tmp_path, tensors, gptq_config(8))).dequantize()
    assert weight.tolist() == [[float(i - (n + 1)) for i in range(8)] for n in range(8)]


@pytest.mark.parametrize("desc_act", [True, False])
def test_an_order_that_is_none(tmp_path: Path, desc_act: bool) -> None:
    assert int4(write_module(tmp_path, fields(), gptq_config(GROUP, desc_act=desc_act))).shape == (ROWS, COLS)


@pytest.mark.parametrize(("asked", "groups"), [(-1, 1), (None, 4), (128, 2)])
def test_group_sizes(tmp_path: Path, asked: int | None, groups: int) -> None:
    """-1 is one group for all inputs; a config that says nothing leaves it to the shapes."""
    parts = random_parts(16, groups, 256 // groups, low=1)
    weight = int4(write_module(tmp_path, gptq_module(*parts), gptq_config() | {"group_size": asked}))
    assert weight.group_size == 256 // groups and torch.equal(weight.dequantize(), dequantize_rows(*parts))


@pytest.mark.parametrize(
    "dynamic",
    [
        {"lm_head": {}, r"-:.*attn.*": {}, r"+:.*mlp\.up_proj": {"group_size": GROUP}},
        {r".*mlp\.(gate|up)_proj": {"group_size": GROUP}, r".*": {"bits": 8}},
        {r"mlp": {"bits": 8}, r"model\.layers\.0\.": {"group_size": GROUP, "bits": 4}},
        {r"model\.language_model\.layers\.0": {"group_size": GROUP}},
    ],
)
def test_the_first_rule_that_fits_counts(tmp_path: Path, dynamic: dict[str, Any]) -> None:
    config = gptq_config(128, dynamic=dynamic)
    assert int4(write_module(tmp_path, fields(), config, prefix="model.language_model.")).group_size == GROUP


def test_a_packed_module_that_a_rule_leaves_out(tmp_path: Path) -> None:
    """What the file holds counts, as everywhere."""
    config = gptq_config(GROUP, dynamic={"-:.*mlp.*": {}, ".*": {"bits": 8}})
    assert int4(write_module(tmp_path, fields(), config)).shape == (ROWS, COLS)


@pytest.mark.parametrize(
    "rules",
    [
        {MODULE: {"group_size": GROUP}, r".*up_proj": {"bits": 8}},
        {r".*up_proj.*": {"group_size": GROUP}},
        {"model.layers.0.mlp": {"bits": 16}, r"mlp\.up": {"group_size": GROUP}},
    ],
)
def test_auto_round_rules(tmp_path: Path, rules: dict[str, Any]) -> None:
    """Names before patterns; what holds no sign of a pattern is a name."""
    config = auto_round_config(128, sym=False, extra_config=rules)
    assert int4(write_module(tmp_path, fields(), config)).group_size == GROUP
