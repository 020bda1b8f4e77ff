"""What a tensor-parallel rank reads of each INT4 format, and how it is packed for the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.compressed_files import group_config, packed_config, packed_module
from helpers.gptq_files import AS_IS, WORDS_MINUS_ONES, auto_round_config, gptq_config, gptq_module, quantize_symmetric
from helpers.one_module import int4, write_module
from helpers.packers import State, awq_config, awq_triplet, dequantize_rows, quantize_rows
from torch import Tensor

from labkit.errors import CheckpointError
from labkit.model.checkpoint import open_checkpoint
from labkit.quant.int4 import Int4Weight
from labkit.quant.pack import pack, unpack

pytestmark = pytest.mark.usefixtures("seed")

GROUP = 32
Stored = tuple[State, dict[str, Any], Tensor]  # the module's tensors, the config, what its weights are


def awq(weight: Tensor) -> Stored:
    parts = quantize_rows(weight, GROUP)
    return awq_triplet(*parts), awq_config(GROUP), dequantize_rows(*parts)


def gptq(weight: Tensor, version: str = "gptq", written: str = WORDS_MINUS_ONES) -> Stored:
    parts = quantize_rows(weight, GROUP)
    config = gptq_config(GROUP, checkpoint_format=version, meta={"quantizer": ["gptqmodel:5.0.0"]})
    return gptq_module(*parts, written), config, dequantize_rows(*parts)


def auto_round(weight: Tensor) -> Stored:
    parts = quantize_symmetric(weight, GROUP)
    return gptq_module(*parts, order=False), auto_round_config(GROUP), dequantize_rows(*parts)


def compressed(weight: Tensor, symmetric: bool) -> Stored:
    fields, exact = packed_module(weight, GROUP, symmetric=symmetric, scale_dtype=torch.float16)
    return fields, packed_config(group_config(GROUP, symmetric)), exact


FORMATS = {
    "awq": awq,
    "gptq": gptq,
    "gptq_v2": lambda weight: gptq(weight, "gptq_v2", AS_IS),
    "auto_round": auto_round,
    "packed_symmetric": lambda weight: compressed(weight, True),
    "packed_asymmetric": lambda weight: compressed(weight, False),
}
formats = pytest.mark.parametrize("name", FORMATS)


def write(directory: Path, name: str, rows: int, cols: int) -> Tensor:
    fields, config, exact = FORMATS[name](torch.randn(rows, cols))
    write_module(directory, fields, config)
    return exact


def assert_packs_to(shard: Int4Weight, exact: Tensor) -> None:
    assert torch.equal(shard.dequantize(), exact)
    assert torch.equal(unpack(pack(shard)).dequantize(), exact)


@formats
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_column_and_row_parallel(tmp_path: Path, name: str, ranks: int) -> None:
    """Every rank opens the file anew and reads its own outputs, or its own inputs. 48 / 4 outputs cut words of 8."""
    exact = write(tmp_path, name, 48, 256)
    for rank in range(ranks):
        rows = slice(48 // ranks * rank, 48 // ranks * (rank + 1))
        cols = slice(256 // ranks * rank, 256 // ranks * (rank + 1))
        assert_packs_to(int4(open_checkpoint(tmp_path), rows=rows), exact[rows])
        assert_packs_to(int4(open_checkpoint(tmp_path), cols=cols), exact[:, cols])


@formats
@pytest.mark.parametrize("heads", [(2, 6, 8), (2, 2, 4), (2, 6, 4)])
def test_blocks_of_a_fused_projection(tmp_path: Path, name: str, heads: tuple[int, int, int]) -> None:
    """in_proj_qkv is q | k | v, so a rank takes a part of each block; blocks may begin anywhere in a word."""
    key_heads, value_heads, dim = heads
    sizes = [key_heads * dim, key_heads * dim, value_heads * dim]
    outputs = sum(sizes)
    exact = write(tmp_path, name, outputs + -outputs % 8, 64)
    checkpoint = open_checkpoint(tmp_path)
    for rank in range(2):
        starts = [sum(sizes[:block]) + size // 2 * rank for block, size in enumerate(sizes)]
        blocks = [slice(start, start + size // 2) for start, size in zip(starts, sizes, strict=True)]
        shard = Int4Weight.cat([int4(checkpoint, rows=block) for block in blocks])
        assert_packs_to(shard, torch.cat([exact[block] for block in blocks]))


@formats
def test_few_outputs(tmp_path: Path, name: str) -> None:
    """in_proj_b and in_proj_a at TP=2: 24 of 48 outputs, fewer than a tile of the kernels."""
    exact = write(tmp_path, name, 48, 128)
    for rows in (slice(0, 24), slice(24, 48), slice(0, 1), slice(47, 48)):
        assert_packs_to(int4(open_checkpoint(tmp_path), rows=rows), exact[rows])


@formats
@pytest.mark.parametrize("cols", [slice(0, 16), slice(16, 64), slice(32, 63)])
def test_a_shard_that_cuts_a_group(tmp_path: Path, name: str, cols: slice) -> None:
    write(tmp_path, name, 16, 64)
    with pytest.raises(CheckpointError, match="cut a quantization group of 32") as caught:
        int4(open_checkpoint(tmp_path), cols=cols)
    assert "--tp-size" in caught.value.cure
