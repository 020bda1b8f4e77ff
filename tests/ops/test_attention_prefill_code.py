"""attention_prefill's machine code for a V100, and its shared memory: tensor-core instructions, bank conflicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.cuda_sources import forget_kernels
from helpers.paged import random_paged

from labkit.device import sources, use_executor
from labkit.device.build_all import Row, all_rungs, build_all
from labkit.device.image import build_image
from labkit.device.machine_code import decode
from labkit.device.main_loop import main_loop_mix
from labkit.device.nvrtc import find_nvrtc
from labkit.device.occupancy import MAX_BLOCK_SHARED, v100_occupancy
from labkit.device.sim_executor import recorded_launches
from labkit.ops.attention_prefill import RUNGS, THREADS, attention_prefill, macros, shared_bytes
from labkit.ops.ladders import LADDERS
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE
from labkit.quant.kv import KVFormat
from labkit.sim.counters import Counters

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

LADDER = LADDERS["attention_prefill"]
TENSOR_RUNGS = RUNGS[1:]
FLOPS = 2048  # of one mma.m8n8k4, which is four HMMA


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return build_all(all_rungs([LADDER]))


def counted(rung: str, name: str, dim: int = 64) -> Counters:
    paged = random_paged([66], 1, dim, KVFormat.named(name, torch.float16))
    q, gate = (torch.randn(66, 1, dim).half() for _ in range(2))
    with use_executor("sim"), recorded_launches() as results:
        attention_prefill(q, paged.pages, paged.batch([66]), gate=gate, rung=rung)
    [result] = results
    assert result.ok and result.counters is not None, result
    return result.counters


def tile_mma(dim: int) -> int:
    """Products of one tile of queries with one page, and of its weights with the values: the arithmetic, no more."""
    return 2 * 2 * QUERY_TILE * PAGE_SIZE * dim // FLOPS


def test_registers_and_shared_memory(rows: list[Row]) -> None:
    for row in rows:
        assert (row.spill_stores, row.spill_loads) == (0, 0), row.name
        assert row.block_threads == THREADS, row.name
        dim = int(row.macros["HEAD_DIM"])
        shared = row.shared_bytes + shared_bytes(row.rung, dim)
        assert shared <= MAX_BLOCK_SHARED, row.name
        blocks = v100_occupancy(THREADS, row.registers, shared).blocks
        assert blocks == (1 if row.rung == "2_tensor_cores" else 2) if dim == 256 else blocks >= 2, row.name


@pytest.mark.parametrize("rung", TENSOR_RUNGS)
@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_tensor_instructions_in_the_code_are_those_of_the_arithmetic(bits: int, dim: int, rung: str) -> None:
    """A warp has a quarter of a tile. A pass of an inner loop is half of 64 elements: each loop runs twice."""
    cubin = build_image("attention_prefill", rung, macros(dim, bits, bits)).cubins["sm_70"]
    each = [instruction.name for instruction in decode(cubin, "attention_prefill")].count("HMMA")
    assert each * 2 == 4 * tile_mma(dim) // (THREADS // 32)
    mix = main_loop_mix(cubin, "attention_prefill")
    assert mix["HMMA"] * 2 == 4 * tile_mma(64) // (THREADS // 32) // 2  # keys or values: half of the arithmetic
    assert mix["LDS"] == mix["HMMA"] // 8  # 16 bytes a lane for every two mma
    assert sum(mix.values()) <= mix["HMMA"] + 64


@pytest.mark.parametrize("name", ["fp16", "int8", "int4"])
def test_tensor_instructions_that_run_are_those_of_the_arithmetic(name: str, seed: int) -> None:
    """66 rows are two tiles, of which the first sees one page, and the second two."""
    for rung in TENSOR_RUNGS:
        assert counted(rung, name).mma == 3 * tile_mma(64)


@pytest.mark.parametrize("name", ["fp16", "int8", "int4", "k8v4"])
def test_no_bank_conflicts(name: str, seed: int) -> None:
    counters = counted(RUNGS[-1], name)
    assert counters.shared_load.requests and counters.shared_store.requests
    for (file, line), counts in counters.by_line().items():
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0, f"{file}:{line}"


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("common/kv_tile.cuh", "(piece ^ order)"),
        ("common/kv_tile.cuh", "(piece ^ (token & 3))"),
        ("attention_prefill/work.cuh", "(piece ^ (row & 3))"),
    ],
)
def test_in_plain_order_there_are_conflicts(
    header: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(What the products are then does not matter: lanes find their pieces by the order.)"""
    shutil.copytree(sources.source_root(), tmp_path, dirs_exist_ok=True)
    text = (tmp_path / header).read_text(encoding="utf-8")
    assert order in text
    (tmp_path / header).write_text(text.replace(order, "piece"), encoding="utf-8")
    monkeypatch.setattr(sources, "source_root", lambda: tmp_path)
    forget_kernels()
    assert counted(RUNGS[-1], "int4").bank_conflicts > 0
    forget_kernels()
