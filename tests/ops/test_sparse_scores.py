"""sparse_scores: its machine code for a V100, its shared memory, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.paged import FORMATS, random_paged

from labkit.device import use_executor
from labkit.device.build_all import Row, all_rungs, build_all
from labkit.device.image import build_image
from labkit.device.main_loop import main_loop_mix
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.ladders import LADDERS
from labkit.ops.paged_kv import PageStore
from labkit.ops.sparse_scores import page_scores
from labkit.quant.kv import KVFormat

LADDER = LADDERS["sparse_scores"]
compiled = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return build_all(all_rungs([LADDER]))


@compiled
def test_registers_and_shared_memory(rows: list[Row]) -> None:
    """No spills, and two blocks of 33 KB on a multiprocessor of 96."""
    for row in rows:
        assert (row.spill_stores, row.spill_loads) == (0, 0), row.name
        assert row.registers * row.block_threads * 2 <= 65_536, row.name
        assert row.shared_bytes * 2 <= 96 * 1024, row.name


@compiled
@pytest.mark.parametrize("kind", LADDER.default_macros, ids=str)
def test_the_main_loop_has_as_many_tensor_instructions_as_the_products_need(kind: dict[str, int]) -> None:
    """A pass is 16 rows by 64 keys by 32 elements: 2 x 2 x 8 mma, of four instructions each."""
    mix = main_loop_mix(build_image("sparse_scores", "2_tensor_cores", kind).cubins["sm_70"], "sparse_scores")
    assert mix["HMMA"] % (2 * 2 * 4 * 2) == 0 and mix["HMMA"] > 0
    pieces = mix["HMMA"] // (2 * 2 * 2 * 4)
    assert mix["LDS"] == 2 * pieces, "a piece of each half of the page, once for both tiles of rows"


@compiled
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_no_bank_conflicts(dim: int, name: str, seed: int) -> None:
    paged = random_paged((64,), 1, dim, KVFormat.named(name, torch.float16))
    ones = torch.ones(1, dtype=torch.int32)
    with use_executor("sim"), recorded_launches() as results:
        page_scores(torch.randn(1, 1, 16, dim).half(), paged.pages.k, paged.batch([1]).table, 0 * ones, ones, 0.1)
    [result] = results
    assert result.ok and result.counters is not None, result
    assert result.counters.shared_load.requests and result.counters.shared_store.requests
    for (file, line), counts in result.counters.by_line().items():
        assert counts.shared_load.conflicts == counts.shared_store.conflicts == 0, f"{file}:{line}"


def arguments(**changes: Any) -> dict[str, Any]:
    ones = torch.ones(2, dtype=torch.int32)
    keys = PageStore(torch.randn(3, 2, 64, 64).half(), None, 16)
    table = torch.tensor([[1, 2]], dtype=torch.int32)
    given = {"x": torch.randn(2, 2, 8, 64).half(), "keys": keys, "table": table, "sequences": 0 * ones, "visible": ones}
    return {**given, "scale": 0.125, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": torch.randn(2, 2, 8, 64)}, "x is float32"),
        ({"x": torch.randn(2, 2, 8, 32).half()}, "64, 128, 256"),
        ({"x": torch.randn(2, 3, 8, 64).half()}, r"keys has shape \[3, 2, 64, 64\]"),
        ({"keys": PageStore(torch.zeros(3, 2, 64, 64), None, 16)}, "keys is float32"),
        ({"table": torch.ones(1, 2)}, "table is float32"),
        ({"visible": torch.ones(3, dtype=torch.int32)}, r"visible has shape \[3\]"),
        ({"sequences": torch.zeros(2, dtype=torch.int64)}, "sequences is int64"),
        ({"weights": torch.zeros(3, 2, 8)}, "weights has shape"),
        ({"scale": "1"}, "scale is a str"),
        ({"rung": ""}, "rung is ''"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_what_the_kernels_do_not_take_is_refused(changes: dict[str, Any], words: str) -> None:
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=words):
        page_scores(**arguments(**changes))


def test_an_unknown_rung_is_refused_by_its_name() -> None:
    with use_executor("sim"), pytest.raises(KernelBuildError, match="9_magic"):
        page_scores(**arguments(rung="9_magic"))


def test_nothing_is_launched_for_no_tiles() -> None:
    nothing = torch.empty(0, dtype=torch.int32)
    with use_executor("sim"):
        out = page_scores(**arguments(x=torch.empty(0, 2, 8, 64).half(), sequences=nothing, visible=nothing))
    assert out.shape == (0, 2, 8, 2)
