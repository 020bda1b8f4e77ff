"""compressed-tensors checkpoints, packed by the library itself: slices, config groups, scales."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.compressed_files import compress, group_config, packed_config, packed_module, quantization_parameters
from helpers.one_module import MODULE, int4, write_module
from helpers.packers import write_safetensors
from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint import open_checkpoint

pytestmark = pytest.mark.usefixtures("seed")


ROWS, COLS, GROUP = 44, 256, 64


def module(symmetric: bool = False) -> dict[str, Tensor | None]:
    return dict(packed_module(torch.randn(ROWS, COLS), GROUP, symmetric=symmetric)[0])


def config(symmetric: bool = False, **weights: Any) -> dict[str, Any]:
    return packed_config(group_config(GROUP, symmetric, **weights))


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_whole_and_slices(tmp_path: Path, symmetric: bool, group: int, dtype: torch.dtype) -> None:
    """Any rows (the zero points lie eight to a word along them), and columns that keep groups whole."""
    for number in range(4):
        rows, groups = random.choice([1, 6, 8, 24, 37, 48]), random.randint(1, 5)
        fields, exact = packed_module(torch.randn(rows, groups * group), group, symmetric=symmetric, scale_dtype=dtype)
        directory = tmp_path / str(number)
        checkpoint = write_module(directory, fields, packed_config(group_config(group, symmetric)))
        whole = int4(checkpoint)
        assert (whole.shape, whole.group_size, whole.form) == (tuple(exact.shape), group, "scale_zero")
        assert torch.equal(whole.dequantize(), exact)
        assert not checkpoint.unused()
        for _ in range(6):
            first, left = random.randrange(rows), random.randrange(groups)
            part = slice(first, random.randint(first + 1, rows))
            cols = slice(left * group, random.randint(left + 1, groups) * group)
            assert torch.equal(int4(open_checkpoint(directory), rows=part, cols=cols).dequantize(), exact[part, cols])


def test_a_slice_reads_less(tmp_path: Path) -> None:
    checkpoint = write_module(tmp_path, module(), config())
    int4(checkpoint, rows=slice(0, 16), cols=slice(0, 64))
    assert checkpoint.bytes_read < 0.2 * checkpoint.total_bytes


@pytest.mark.parametrize("cols", [slice(0, 32), slice(8, 72), slice(64, 100)])
def test_slices_that_cut_a_group(tmp_path: Path, cols: slice) -> None:
    with pytest.raises(CheckpointError, match="cut a quantization group of 64"):
        write_module(tmp_path, module(), config()).linear(MODULE, cols=cols)


EXACT, PATTERN, CLASS = (MODULE,), (r"re:.*mlp\.up_proj$",), ("Linear",)


@pytest.mark.parametrize(
    "groups",
    [
        [(CLASS, 32, True), (EXACT, GROUP, False)],
        [(EXACT, GROUP, False), (PATTERN, 32, True)],
        [(CLASS, 32, True), (PATTERN, GROUP, False)],
        [(("re:.*down_proj", "model.layers.1.mlp.up_proj"), 32, True), (CLASS, GROUP, False)],
        [((r"re:up_proj",), 32, True), (CLASS, GROUP, False)],
        [((r"re:.*z",), 32, True), ((r"re:model\..*", "Conv1d"), GROUP, False)],
    ],
)
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_the_closest_target_counts(tmp_path: Path, groups: list[Any], prefix: str) -> None:
    """A name before a pattern before a class; patterns fit from the start; either spelling of the name."""
    fields, exact = packed_module(torch.randn(ROWS, COLS), GROUP, symmetric=False)
    entries = [group_config(size, symmetric, targets) for targets, size, symmetric in groups]
    checkpoint = write_module(tmp_path, fields, packed_config(*entries), prefix=prefix)
    assert torch.equal(int4(checkpoint).dequantize(), exact)


def test_targets_as_the_file_spells_them(tmp_path: Path) -> None:
    stored = "model.language_model.layers.0.mlp.up_proj"
    fields, exact = packed_module(torch.randn(ROWS, COLS), GROUP, symmetric=False)
    wrong, right = group_config(32, True), group_config(GROUP, False, (stored,))
    assert torch.equal(
        int4(write_module(tmp_path, fields, packed_config(wrong, right), module=stored)).dequantize(), exact
    )


def test_mixed_precision_with_this_format_in_the_group(tmp_path: Path) -> None:
    assert int4(write_module(tmp_path, module(), config() | {"format": "mixed-precision"})).shape == (ROWS, COLS)


@pytest.mark.parametrize("actorder", [None, "weight", "static", "group"])
def test_an_order_that_is_none(tmp_path: Path, actorder: str | None) -> None:
    fields, exact = packed_module(torch.randn(ROWS, COLS), GROUP, symmetric=False)
    order = {"weight_g_idx": (torch.arange(COLS) // GROUP).int()}
    checkpoint = write_module(tmp_path, {**fields, **order}, config(actorder=actorder))
    assert torch.equal(int4(checkpoint, cols=slice(64, 192)).dequantize(), exact[:, 64:192])
    assert not checkpoint.unused()


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_scale_that_float16_would_lose(tmp_path: Path, symmetric: bool) -> None:
    """Case num-02: one bfloat16 scale of 1e-8. The report names tensor and count, and no weight is erased."""
    weight = torch.randn(ROWS, COLS)
    scale, zero = quantization_parameters(weight, GROUP, symmetric)
    scale = torch.full_like(scale, 0.01).bfloat16()
    scale[5, 2] = 1e-8
    weight[5, 2 * GROUP : 3 * GROUP] *= 1e-8 / 0.01
    fields, exact = compress(weight, scale, zero, GROUP, symmetric)
    checkpoint = write_module(tmp_path, fields, config(symmetric))
    read = int4(checkpoint)
    assert read.groups.dtype == torch.float32
    torch.testing.assert_close(read.dequantize(), exact, rtol=1e-6, atol=0)
    assert exact[5, 2 * GROUP : 3 * GROUP].abs().max() > 0
    (finding,) = checkpoint.report.ranges
    assert (finding.name, finding.overflowing, finding.flushing) == (f"{MODULE}.weight_scale", 0, 1)


def test_a_kv_cache_scheme_is_ignored_aloud(tmp_path: Path) -> None:
    scales = {f"model.layers.0.self_attn.{key}_scale": torch.ones(1) for key in "kv"}
    state = {f"{MODULE}.{field}": tensor for field, tensor in module().items()} | scales
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    write_safetensors(tmp_path, state, {"quantization_config": config() | {"kv_cache_scheme": scheme}})
    checkpoint = open_checkpoint(tmp_path)
    int4(checkpoint)
    assert not checkpoint.unused() and checkpoint.names().isdisjoint(scales)
    assert "kv_cache_scheme in config.json and its 2 scales are ignored" in str(checkpoint.report)
    write_safetensors(tmp_path, state, {"quantization_config": config()})
    assert set(scales) <= open_checkpoint(tmp_path).unused()
