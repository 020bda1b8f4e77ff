"""docs/attention.md says what docs/measured and the sources hold, and nothing that was typed by hand there."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
from helpers.tools import load_tool

from labkit.bench.attention_calls import DENSE, GATHERED
from labkit.bench.attention_cases import DecodeCase, PrefillCase, geometry
from labkit.bench.attention_times import AttentionBench, DecodeTimes, PrefillTimes
from labkit.bench.clock import LABKIT
from labkit.device.build_all import Row
from labkit.device.ladder import Ladder
from labkit.device.nvrtc import find_nvrtc
from labkit.ops import attention_prefill, rmsnorm


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("attention_page")


def bench(seconds: dict[str, float], kv: str = "int8", context: int = 65536) -> dict[str, Any]:
    """One decode row of 27B and one prefill row, as --json writes them; a copy moves 100 GB/s."""
    heads = geometry("27b-tp2")
    decode = DecodeTimes(DecodeCase(heads, 8, context), kv, seconds)
    prefill = PrefillTimes(PrefillCase(heads, 2048, 4096), kv, {"4_prefetch": 2e-3, DENSE: 1e-3})
    figures = (decode,), (prefill,)
    return AttentionBench("imaginary", "1.2", "2.10", "0.3", "abc", "2026-11-30", 100.0, *figures).to_dict()


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
def test_the_page_is_current(tool: ModuleType) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    compiler = re.search(r"NVRTC 12\.\d+", page)
    assert compiler is not None
    if compiler[0] != str(find_nvrtc()):
        pytest.skip(f"the page was made by {compiler[0]}, which may count other registers")
    assert page == tool.page(), "run `python tools/attention_page.py`"


def test_names_are_those_of_the_benchmark(tool: ModuleType) -> None:
    assert (tool.LABKIT, tool.GATHERED, tool.DENSE) == (LABKIT, GATHERED, DENSE)


def test_without_measurements_it_says_so(tool: ModuleType) -> None:
    assert any("Not yet measured" in line for line in tool.measured([]))


def test_every_row_and_kernel_is_there(tool: ModuleType) -> None:
    document = bench({LABKIT: 1e-2, "1_slow": 2e-2, GATHERED: 4e-2, DENSE: 2e-2})
    lines = tool.measured([document])
    assert "## imaginary" in lines and any("V100: not yet measured" in line for line in lines)
    mb, share = document["decode"][0]["mb"], document["decode"][0]["share_of_copy"]
    wanted = (
        f"| 27b-tp2 | 8 | 65,536 | int8 | {mb:,.1f} | 10,000.0 | 20,000.0 | 40,000.0 | 20,000.0 |"
        f" {mb / 10:,.0f} | {share:.0%} |"
    )
    assert wanted in lines
    flop = document["prefill"][0]["gflop"]
    assert f"| 27b-tp2 | 2,048 | 4,096 | int8 | {flop:,.0f} | {flop / 2e0:,.1f} | {flop:,.1f} |" in lines
    heads = [line for line in lines if line.startswith("| heads")]
    assert "1_slow" in heads[0] and "4_prefetch" in heads[1]


def test_columns_and_cells_agree(tool: ModuleType) -> None:
    tables = [line for line in tool.measured([bench({LABKIT: 1.0, DENSE: 1.0})]) if line.startswith("|")]
    counts = [line.count("|") for line in tables]
    assert len(tables) == 6 and len(set(counts[:3])) == 1 and len(set(counts[3:])) == 1


@pytest.mark.parametrize(("seconds", "short"), [(8e-3, False), (1.0, True)])
def test_what_was_wanted_is_judged(tool: ModuleType, seconds: float, short: bool) -> None:
    times = {LABKIT: seconds, GATHERED: 0.5, DENSE: 0.004}
    text = "\n".join(tool.targets(bench(times)["decode"]))
    named = "27b-tp2 int8 at 8 x 65,536 (of 1)"
    assert (f"wanted share: {named}" in text) is short
    assert (f"`gather + SDPA`: {named}" in text) is short
    assert f"nothing to gather: {named}" in text


def test_what_was_not_measured_is_no_success(tool: ModuleType) -> None:
    lost = "\n".join(tool.targets(bench({GATHERED: 0.5})["decode"]))
    assert lost.count("27b-tp2 int8 at 8 x 65,536 (of 1)") == 2 and "to gather: not measured" in lost
    short = "\n".join(tool.targets(bench({LABKIT: 1.0}, "k8v4", 1024)["decode"]))
    assert short.count("not measured") == 3


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
def test_a_ladder_becomes_a_table(tool: ModuleType) -> None:
    """Older rungs in fp16 alone; KV dtypes that need the same macros share a line."""
    rungs = tuple(rmsnorm.RUNGS[-2:])

    def wanted(config: Any, ranks: int, kv: str) -> list[Any]:
        assert (config.hidden_size, ranks) == (5120, 2)
        return [rmsnorm.macros(256 if kv == "int4" else 128)]

    ladder = Ladder("rmsnorm", rungs, ("rmsnorm", "add_rmsnorm"), specialisations=wanted)
    lines = tool._ladder(ladder)
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        [f"| `{rung}`", kv, f"`{entry}`"]
        for rung, kv in ((rungs[0], "fp16"), (rungs[1], "fp16, int8, k8v4"), (rungs[1], "int4"))
        for entry in ("rmsnorm", "add_rmsnorm")
    ]
    assert len({line.count("|") for line in lines}) == 1


def test_shared_memory_counts_what_a_launch_asks_for(tool: ModuleType) -> None:
    """64 KiB of it leave room for one block on a multiprocessor."""
    sizes = {"registers": 64, "spill_stores": 0, "spill_loads": 0, "shared_bytes": 1000, "block_threads": 128}
    names = {"name": "", "op": "attention_prefill", "entry": "k", "arch": "sm_70", "macros": {"HEAD_DIM": "256"}}
    asked = attention_prefill.shared_bytes("2_tensor_cores", 256)
    assert asked > 48 * 1024
    row = Row(**sizes, **names, rung="2_tensor_cores", occupancy=0.5, main_loop={"tensor": 7})
    cells = tool.needs(row, tool._asked_bytes(row), ["tensor", "other"])
    assert cells[3:] == [f"{1000 + asked:,}", "6%", 7, ""]


def test_a_ladder_that_is_not_there_yet(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "LADDERS", {})
    assert tool.static().count("Not in the ladders yet.") == 3
