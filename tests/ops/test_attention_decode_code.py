"""Machine code of decode attention: registers, blocks, what stands between tensor-core instructions, bank conflicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.paged import random_paged

from labkit.device import use_executor
from labkit.device.build_all import Row, Wanted, build_all
from labkit.device.image import build_image
from labkit.device.main_loop import main_loop_mix
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import v100_occupancy
from labkit.device.sim_executor import recorded_launches
from labkit.device.sources import source_root
from labkit.ops.attention_decode import attention_decode, macros
from labkit.ops.attention_decode_plan import most_queries, resident_blocks
from labkit.ops.ladders import LADDERS
from labkit.quant.kv import BITS, KVFormat

FAST = ("4_wide", "5_tensor_cores")
compiles = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


@pytest.fixture(scope="module")
def shipped() -> list[Row]:
    ladder = LADDERS["attention_decode"]
    formats = [each for each in ladder.default_macros if each["K_BITS"] == each["V_BITS"] != 8]
    return build_all([Wanted(ladder.op, rung, each, ladder.entries) for rung in FAST for each in formats])


@compiles
def test_the_planned_blocks_fit_a_multiprocessor(shipped: list[Row]) -> None:
    for row in shipped:
        assert (row.spill_stores, row.spill_loads) == (0, 0), row.name
        wanted = resident_blocks(row.rung, *(int(row.macros[name]) for name in ("HEAD_DIM", "K_BITS", "QUERIES")))
        assert v100_occupancy(row.block_threads, row.registers, row.shared_bytes).blocks >= wanted, row.name


@compiles
@pytest.mark.parametrize("rung", FAST)
@pytest.mark.parametrize("bits", [BITS["fp16"], BITS["int4"]], ids=str)
def test_the_largest_slice_does_not_spill(rung: str, bits: tuple[int, int]) -> None:
    made = macros(256, *bits, 8 if most_queries(rung, bits[0]) == 8 else 6)
    [row] = build_all([Wanted("attention_decode", rung, made, ("attention_decode",))])
    assert (row.spill_stores, row.spill_loads) == (0, 0)


@compiles
def test_tensor_cores_have_little_else_to_wait_for() -> None:
    """One load of a key's 16 bytes meets 2 mma, of four instructions each; in fp16 hardly anything stands between."""
    mix = main_loop_mix(
        build_image("attention_decode", "5_tensor_cores", macros(256, 16, 16, 6)).cubins["sm_70"], "attention_decode"
    )
    assert mix["HMMA"] == 8 * mix["LDG"]
    assert sum(mix.values()) - mix["HMMA"] <= 40


def merge_line(file: Path) -> int:
    """Where a source begins to add up warps, counted from 1; 0 where it does not."""
    start = "__device__ __forceinline__ void merge("
    return next((n for n, line in enumerate(file.read_text().splitlines(), 1) if line.startswith(start)), 0)


@compiles
@pytest.mark.parametrize(("dim", "name"), [(256, "fp16"), (64, "int4")])
@pytest.mark.parametrize("rung", FAST)
def test_no_bank_conflicts_before_the_warps_are_added_up(rung: str, dim: int, name: str, seed: int) -> None:
    paged = random_paged((70,), 1, dim, KVFormat.named(name, torch.float16))
    with use_executor("sim"), recorded_launches() as results:
        attention_decode(torch.randn(1, 6, dim).half(), paged.pages, paged.batch([1]), rung=rung, split_count=1)
    [result] = results
    assert result.ok and result.counters is not None
    merging = {file.name: line for file in (source_root() / "attention_decode").iterdir() if (line := merge_line(file))}
    lines = [
        ((file, line), counts)
        for (file, line), counts in result.counters.by_line().items()
        if file.endswith((f"{rung}.cu", "_keys.cuh", "_values.cuh")) and line < merging.get(Path(file).name, line + 1)
    ]
    assert sum(counts.shared_load.requests for _, counts in lines) and sum(c.shared_store.requests for _, c in lines)
    for line, counts in lines:
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0, line
