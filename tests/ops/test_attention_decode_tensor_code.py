"""What the tensor-core rung of decode attention is for a V100: blocks that fit, and no more mma than the arithmetic."""

from __future__ import annotations

import pytest
import torch
from helpers.paged import random_paged

from labkit.device import use_executor
from labkit.device.build_all import Wanted, build_all
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import v100_occupancy
from labkit.device.sim_executor import recorded_launches
from labkit.ops.attention_decode import RUNGS, attention_decode, macros
from labkit.ops.attention_decode_plan import resident_blocks
from labkit.quant.kv import BITS, KVFormat

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

RUNG = RUNGS[-1]
BLOCKS = {64: 4, 128: 3, 256: 2}  # on a multiprocessor, by head dim


@pytest.mark.parametrize(("dim", "name"), [(64, "int8"), (64, "int4"), (128, "k8v4"), (256, "int8"), (256, "int4")])
def test_the_blocks_fit_without_spills(dim: int, name: str) -> None:
    [row] = build_all([Wanted("attention_decode", RUNG, macros(dim, *BITS[name], 8), ("attention_decode",))])
    assert (row.spill_stores, row.spill_loads) == (0, 0)
    fit = v100_occupancy(row.block_threads, row.registers, row.shared_bytes).blocks
    assert fit >= BLOCKS[dim] >= resident_blocks(RUNG, dim, BITS[name][0], 8)


@pytest.mark.parametrize(("dim", "name"), [(64, "fp16"), (64, "int8"), (128, "int4")])
def test_tensor_instructions_that_run_are_those_of_the_arithmetic(dim: int, name: str, seed: int) -> None:
    """70 tokens are three tiles; whatever the format, each of the two products of a tile is dim / 4 mma."""
    paged = random_paged((70,), 1, dim, KVFormat.named(name, torch.float16))
    q = torch.randn(1, 2, dim).half()
    with use_executor("sim"), recorded_launches() as results:
        attention_decode(q, paged.pages, paged.batch([1]), rung=RUNG, split_count=1)
    [result] = results
    assert result.counters is not None and result.counters.mma == 3 * 2 * dim // 4
