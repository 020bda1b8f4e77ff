"""awq_gemm's machine code for a V100, and its shared memory: instructions of the main loops, bank conflicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.cuda_sources import forget_kernels
from helpers.ops_gemm import random_weight
from torch import Tensor

from labkit.device import sources, use_executor
from labkit.device.build_all import Row, all_rungs, build_all
from labkit.device.image import build_image
from labkit.device.main_loop import main_loop_mix
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches
from labkit.ops.awq_gemm import RUNGS, TILINGS, awq_gemm
from labkit.ops.ladders import LADDERS
from labkit.quant.pack import PackedInt4, pack
from labkit.sim.counters import Counters

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

LADDER = LADDERS["awq_gemm"]
SHARED_RUNGS = ["2_swizzled", "3_double_buffer", "5_large_tile"]


def counted(x: Tensor, weight: PackedInt4, rung: str) -> Counters:
    with use_executor("sim"), recorded_launches() as results:
        awq_gemm(x, weight, rung=rung)
    [result] = results
    assert result.ok and result.counters is not None, result
    return result.counters


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return build_all(all_rungs([LADDER]))


def test_registers(rows: list[Row]) -> None:
    for row in rows:
        assert (row.spill_stores, row.spill_loads) == (0, 0), row.name
        blocks = {"4_small_m": 4, "5_large_tile": 1}.get(row.rung, 5)  # on one multiprocessor, of 65,536 registers
        assert row.registers * row.block_threads * blocks <= 65_536, row.name


def test_tilings_are_those_of_the_sources(rows: list[Row]) -> None:
    assert list(TILINGS) == RUNGS
    assert all(row.block_threads == 32 * TILINGS[row.rung].warps for row in rows)


def test_little_stands_between_the_tensor_instructions_of_the_large_tile(rows: list[Row]) -> None:
    """A pass is 64 x 64 x 32 for each warp: 128 mma, of four instructions each."""
    found = [row.main_loop for row in rows if row.rung == "5_large_tile"]
    assert len(found) == len(LADDER.default_macros)
    for mix in found:
        assert mix is not None and mix["tensor"] == 512
        assert sum(mix.values()) - mix["tensor"] <= 350


@pytest.mark.parametrize("kind", LADDER.default_macros, ids=str)
def test_the_main_loop_for_few_rows_waits_for_nobody(kind: dict[str, int]) -> None:
    mix = main_loop_mix(build_image("awq_gemm", "4_small_m", kind).cubins["sm_70"], "awq_gemm")
    assert mix["HMMA"] and mix["LDG"]
    assert not mix.keys() & {"LDS", "STS", "BAR", "ATOMG", "STG"}


@pytest.mark.parametrize("rung", [*SHARED_RUNGS, "4_small_m"])
def test_no_bank_conflicts(rung: str, seed: int) -> None:
    """On no line, the main loop's among them."""
    weight = pack(random_weight(130, 128, 64, "scale_zero"))
    counters = counted(torch.randn(33, 128).half(), weight, rung)
    assert counters.shared_load.requests and counters.shared_store.requests
    for (file, line), counts in counters.by_line().items():
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0, f"{file}:{line}"


@pytest.mark.parametrize("rung", SHARED_RUNGS)
def test_without_the_swizzle_there_are_conflicts(rung: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(sources.source_root(), tmp_path, dirs_exist_ok=True)
    header = tmp_path / "common" / "swizzle.cuh"
    plain = header.read_text(encoding="utf-8").replace("(piece ^ ((row >> 1) & 3))", "piece")
    assert plain != header.read_text(encoding="utf-8")
    header.write_text(plain, encoding="utf-8")
    monkeypatch.setattr(sources, "source_root", lambda: tmp_path)
    forget_kernels()
    counters = counted(torch.randn(33, 64).half(), pack(random_weight(33, 64, 64, "scale_zero")), rung)
    assert counters.shared_load.conflicts >= counters.shared_load.requests
