"""Shares, kept pages and errors of a tile are those of attention, and the picture shows them."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of, texts

from labkit.bench.sparse_data import SparseData, needle_mass, synthetic
from labkit.lab.page_mass import COLOURS, MEANING, page_mass, reasons
from labkit.lab.sparse_tile import page_shares, sparse_tile
from labkit.ops.sparse_settings import SparseSettings


@pytest.fixture(scope="module")
def data() -> SparseData:
    return synthetic(1024, 2, 2, 64, 5)


def test_shares_are_those_of_attention_row_by_row(data: SparseData) -> None:
    start = data.starts[0]
    shares = page_shares(data.queries[0], data.keys[: start + 64], start)
    assert torch.allclose(shares.sum(-1), torch.ones(2, 64), atol=1e-5)
    for head, row in ((0, 0), (1, 37), (1, 63)):
        seen = data.keys[: start + row + 1] @ data.queries[0, row, head] * data.scale
        weights = torch.nn.functional.pad(seen.softmax(0), (0, 63 - row))
        assert torch.allclose(shares[head, row], weights.view(-1, 64).sum(1), atol=1e-5)


def test_a_needle_is_in_the_shares(data: SparseData) -> None:
    needle = data.needles[0]
    shares = page_shares(data.queries[needle.tile], data.keys, data.starts[needle.tile])
    assert shares[needle.head, needle.row, needle.position // 64] >= needle_mass(data, needle) - 1e-5


def test_what_is_lost_explains_what_is_off(data: SparseData) -> None:
    everything = sparse_tile(data, 1, SparseSettings(mass=1.0))
    assert everything.kept.all() and float(everything.errors.max()) == 0 == float(everything.lost.max())
    few = sparse_tile(data, 1, SparseSettings(mass=0.3, needle=1.0, recent=1))
    assert not few.kept.all() and few.kept[:, 0].all() and few.kept[:, -2:].all()
    assert float(few.errors.max()) > 0.01 and few.errors.shape == few.lost.shape == (2, 64)
    most = few.lost > few.lost.median()
    assert float(few.errors[most].mean()) > 2 * float(few.errors[~most].mean())


def test_reasons() -> None:
    kept = torch.tensor([True, True, False, True, False, True, True, True])
    assert reasons(kept, SparseSettings(sink=1, recent=2)) == "SA.A.RRO"
    assert reasons(kept[:2], SparseSettings(sink=1, recent=4)) == "SO"


def test_the_picture_shows_each_page() -> None:
    kept = torch.tensor([True, True, False, True, False, True, True, True])
    shares = torch.full((4, 8), 0.1)
    shares[:, 0] = 0.3
    shares[2] = torch.tensor([0.2, 0.05, 0.5, 0.05, 0.05, 0.05, 0.05, 0.05])
    picture = page_mass(shares, kept, SparseSettings(sink=1, recent=2), needles=[2], title="some")
    root = root_of(picture)
    for sign, colour in COLOURS.items():
        assert len(boxes(root, colour)) == "SA.A.RRO".count(sign) + 1  # and one of the legend
    assert {"page", "0", "5", "7"} <= set(texts(root))
    assert "▼" in texts(root) and set(MEANING) == set(COLOURS)
    assert "some: 6 of 8 pages kept (75%)" in picture.alt and "page 2: 20% on average, 50% of one row" in picture.alt
    lines = picture.text.splitlines()
    assert lines[3].split()[-1] == "31511111"
    assert lines[4].endswith("SA.A.RRO") and lines[5] == f"{'needle':14}  ^"


def test_without_needles_nothing_is_marked() -> None:
    picture = page_mass(torch.full((2, 2), 0.5), torch.tensor([True, True]), SparseSettings())
    assert "▼" not in "".join(texts(root_of(picture))) and "needle" not in picture.text


@pytest.mark.parametrize(("columns", "needles"), [(3, []), (4, [4]), (4, [-1])])
def test_pages_that_are_not_there_are_refused(columns: int, needles: list[int]) -> None:
    with pytest.raises(ValueError, match="of 4 pages"):
        page_mass(torch.ones(2, columns), torch.ones(4, dtype=torch.bool), SparseSettings(), needles)
