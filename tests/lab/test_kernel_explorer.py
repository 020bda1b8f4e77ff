"""The explorer puts each PTX instruction beside its line, with the counts of the run."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from labkit.lab.kernel_explorer import Page, kernel_explorer, page
from labkit.sim import run

SOURCE = """// a & b < c
extern "C" __global__ void doubled(const float* x, float* y, int n) {
    __shared__ float tile[32][32];
    int i = threadIdx.x;
    tile[i][0] = x[i];
    __syncthreads();
    if (i < n) y[i] = 2.0f * tile[i][0];
}
"""


@pytest.fixture(scope="module")
def doubled() -> Page:
    x, y = torch.randn(32), torch.zeros(32)
    counters = run(SOURCE, name="doubled", grid=1, block=32, args=[x, y, 32]).counters
    assert counters is not None and torch.equal(y, 2 * x)
    return page("doubled", SOURCE, counters)


def test_lines_carry_their_instructions_and_counts(doubled: Page) -> None:
    [lines] = doubled.files.values()
    assert [line.text for line in lines] == SOURCE.splitlines()
    by_number = {line.number: line for line in lines}
    assert any(text.startswith("ld.global") for text in by_number[5].ptx)
    assert by_number[5].counts[1:] == (4, 31)  # sectors; a column of the tile is one bank
    assert by_number[7].counts[1:] == (4, 31)
    assert by_number[6].ptx == ("bar.sync 0",) and by_number[6].counts == (1, 0, 0)
    assert by_number[1].ptx == () and by_number[3].counts == (0, 0, 0)


def test_all_instructions_are_there(doubled: Page) -> None:
    assert [text.split(".")[0] for text in doubled.ptx].count("bar") == 1
    assert doubled.ptx[-1] == "ret"


def test_plain_text_has_the_lines_of_which_instructions_came(doubled: Page) -> None:
    rows = doubled.text.splitlines()
    assert rows[0] == "doubled" and rows[1].split() == ["line", "warp", "instr.", "sectors", "bank", "conflicts"]
    assert "bar.sync" not in doubled.text
    [row] = [row for row in rows if row.endswith("tile[i][0] = x[i];")]
    assert row.split()[0] == "5" and row.split()[2:4] == ["4", "31"]


def test_html_is_well_formed_escaped_and_unfolds_to_ptx(doubled: Page) -> None:
    root = ElementTree.fromstring(f"<div>{doubled.html}</div>")
    assert "// a & b < c" in "".join(root.itertext())
    assert any("ld.global" in "".join(part.itertext()) for part in root.iter("details"))
    assert len(list(root.iter("tr"))) == 1 + len(SOURCE.splitlines())
    assert all(head.get("scope") == "col" for head in root.iter("th"))


def test_kernels_are_leafed_through(doubled: Page) -> None:
    explorer = kernel_explorer([Page("other", {"other": ()}), doubled])
    assert repr(explorer).startswith(doubled.text) and explorer.slider.description == "kernel"
