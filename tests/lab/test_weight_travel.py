"""The picture of the weights' way shows what the kernel's lanes really store and load."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of

from labkit.lab.attention_run import random_operands, run_rung
from labkit.lab.drawing import FETCHED, USED, WARNING
from labkit.lab.weight_travel import most_that_stay, operands_of, weight_travel, weights_of
from labkit.sim.trace import Access, Trace

TILE = 8192  # bytes in shared memory; at D = 64 the queries are the first tile, the weights the second


@pytest.fixture(scope="module")
def accesses() -> list[Access]:
    """What the first warp does with shared memory: one page, D = 64."""
    torch.manual_seed(10)
    run = run_rung("attention_prefill", "4_prefetch", random_operands([64], rows=[64], heads=1), trace=True)
    assert run.matches and isinstance(run.counters, Trace)
    return run.counters.at(space="shared", warp=0)


def place(address: int) -> tuple[int, int]:
    """(row, piece of eight tokens) of an address among the weights: pieces of a row are exchanged by its number."""
    row, piece = divmod((address - TILE) // 16, 8)
    return row, piece ^ (row & 3)


def test_a_lane_has_the_weights_that_it_stores(accesses: list[Access]) -> None:
    stores = [each for each in accesses if each.kind == "store" and each.nbytes == 8 and each.addresses[0] >= TILE]
    for lane in range(32):
        stored = set()
        for store in stores:
            address = store.addresses[lane]
            row, piece = place(address)
            first = 8 * piece + 4 * (address // 8 % 2)
            stored |= {(row, token) for token in range(first, first + 4)}
        assert {each for each in stored if each[0] < 8} == weights_of(lane)
        assert {(row - 8, token) for row, token in stored if row >= 8} == weights_of(lane)


def test_a_lane_wants_the_weights_that_it_loads(accesses: list[Access]) -> None:
    loads = [each for each in accesses if each.kind == "load" and TILE <= each.addresses[0] < 2 * TILE]
    for lane in range(32):
        pieces = [place(load.addresses[lane]) for load in loads]
        loaded = {(row, 8 * piece + i) for row, piece in pieces if row < 8 for i in range(8)}
        assert loaded == operands_of(lane)


def test_the_lanes_share_all_weights() -> None:
    parts = [weights_of(lane) for lane in range(32)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 512
    assert all(len(weights_of(lane) & operands_of(lane)) == 8 for lane in range(32))


def test_at_most_half_can_stay() -> None:
    """As published: 32 of the 64 results of a quad-pair."""
    assert most_that_stay("2x2") == most_that_stay("1x4") == (128, 256)


def test_the_picture_and_its_words() -> None:
    picture = weight_travel(5)
    root = root_of(picture)
    assert [len(boxes(root, colour)) for colour in (USED, WARNING, FETCHED)] == [9, 9, 57]  # one each of the legend
    assert "lane 5 has 16 of 512 weights and wants 64; 8 of them are its own" in picture.text
    assert picture.alt.startswith("Weights of eight rows and 64 tokens in a warp. Lane 5 has 16")
    row = next(line for line in picture.text.splitlines() if line.startswith("row 1"))
    assert row.count("#") == 8 and row.count("+") == 56


def test_no_such_lane() -> None:
    with pytest.raises(ValueError, match="lane 32"):
        weight_travel(32)
