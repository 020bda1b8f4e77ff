"""docs/gdn.md says what docs/measured and the sources hold, and nothing that was typed by hand there."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
from helpers.tools import load_tool

from labkit.bench.clock import LABKIT
from labkit.bench.gdn_calls import OPERATIONS, TORCH
from labkit.bench.gdn_cases import PARTS, Case, geometry
from labkit.bench.gdn_times import GdnBench, GdnTimes
from labkit.device.ladder import Ladder
from labkit.device.nvrtc import find_nvrtc
from labkit.ops import gdn_conv, gdn_prefill

HEADS = geometry("27b-tp2")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("gdn_page")


def bench(seconds: dict[str, float], *parts: str) -> dict[str, Any]:
    """One row of each part, 2 sequences of 96 tokens, as --json writes them; a copy moves 100 GB/s."""
    times = tuple(GdnTimes(Case(part, HEADS, 2, 96), seconds) for part in parts or PARTS)
    return GdnBench("imaginary", "1.2", "2.10", "0.3", "abc", "2026-11-30", 100.0, times).to_dict()


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
def test_the_page_is_current(tool: ModuleType) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    compiler = re.search(r"NVRTC 12\.\d+", page)
    assert compiler is not None
    if compiler[0] != str(find_nvrtc()):
        pytest.skip(f"the page was made by {compiler[0]}, which may count other registers")
    assert page == tool.page(), "run `python tools/gdn_page.py`"


def test_names_are_those_of_the_benchmark(tool: ModuleType) -> None:
    assert tool.LABKIT == LABKIT
    assert list(tool.OPS) == [OPERATIONS[part].op for part in PARTS]


def test_without_measurements_it_says_so(tool: ModuleType) -> None:
    assert any("Not yet measured: `labkit bench gdn`" in line for line in tool.measured([]))


def test_bytes_and_their_rates_are_there(tool: ModuleType) -> None:
    lines = tool.measured([bench({LABKIT: 1e-3, "1_slow": 2e-3, TORCH: 4e-3})])
    assert "## imaginary" in lines and any("V100: not yet measured" in line for line in lines)
    for part in ("conv", "decode", "norm"):
        mb = Case(part, HEADS, 2, 96).moved_bytes / 1e6
        start = f"| 27b-tp2 | 2 | 96 | {mb:,.2f} | 1,000.0 | 2,000.0 | 4,000.0 |"
        assert f"{start} {mb:,.0f} | {mb / 100:.0%} |" in lines


def test_products_and_their_rates_are_there(tool: ModuleType) -> None:
    lines = tool.measured([bench({LABKIT: 1e-3, TORCH: 4e-3}, "prefill")])
    gflop = Case("prefill", HEADS, 2, 96).flop / 1e9
    each = 1000 * 1024 / 192
    assert f"| 27b-tp2 | 2 | 96 | {gflop:,.1f} | 1,000.0 | 4,000.0 | {each:,.1f} | {gflop:,.1f} |" in lines
    assert not any(line.startswith(("### Conv", "### Decode", "### Norm")) for line in lines)


@pytest.mark.parametrize("seconds", [{TORCH: 1.0}, {}])
def test_what_was_not_measured_is_a_dash(tool: ModuleType, seconds: dict[str, float]) -> None:
    rows = [line for line in tool.measured([bench(seconds)]) if line.startswith("| 27b")]
    assert len(rows) == 4 and all(row.endswith("| - | - |") for row in rows)


def test_columns_and_cells_agree(tool: ModuleType) -> None:
    lines = tool.measured([bench({LABKIT: 1.0, TORCH: 1.0})])
    counts = [line.count("|") for line in lines if line.startswith("|")]
    assert len(counts) == 12 and all(len(set(counts[i : i + 3])) == 1 for i in range(0, 12, 3))


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
def test_every_kernel_of_a_rung_is_in_its_table(tool: ModuleType) -> None:
    """Also those that only some rungs have, which the ladder does not name."""

    def wanted(config: Any, ranks: int, kv: str) -> list[Any]:
        assert (config.linear_num_value_heads, ranks) == (48, 2)
        return [gdn_conv.macros(config.linear_key_head_dim, config.linear_conv_kernel_dim)]

    ladder = Ladder(gdn_conv.OP, tuple(gdn_conv.RUNGS), (gdn_conv.OP,), specialisations=wanted)
    lines = tool._ladder(ladder)
    kernels = {
        rung: {line.split(" | ")[1] for line in lines if line.startswith(f"| `{rung}`")} for rung in ladder.rungs
    }
    assert kernels["1_naive"] == {"`gdn_conv`", "`normalise_heads`", "`keep_history`"}
    assert kernels[ladder.shipped] == {"`gdn_conv`"}
    assert len({line.count("|") for line in lines}) == 1


def test_a_model_without_the_operation(tool: ModuleType) -> None:
    assert tool._ladder(Ladder(gdn_prefill.OP, tuple(gdn_prefill.RUNGS), (gdn_prefill.OP,))) == [
        "No kernel for this model."
    ]


def test_a_ladder_that_is_not_there_yet(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "LADDERS", {})
    assert tool.static().count("Not in the ladders yet.") == 4
