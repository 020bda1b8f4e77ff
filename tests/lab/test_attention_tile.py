"""The tiles in the picture are those that a causal mask leaves."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.drawings import boxes, root_of

from labkit.lab.attention_tile import COLOURS, NEVER, PARTLY, SKIPPED, WHOLE, attention_tile, kept_lists, tile_states
from labkit.ops.attention_torch import causal_mask
from labkit.ops.kept_pages import KeptPages
from labkit.ops.paged_batch import PagedBatch


@pytest.mark.parametrize(("rows", "length"), [(64, 64), (1, 200), (130, 130), (70, 300), (192, 192), (64, 100)])
def test_states_follow_from_the_mask(rows: int, length: int) -> None:
    mask = causal_mask(rows, length)
    for tile, states in zip(mask.split(64), tile_states(rows, length), strict=True):
        for part, sign in zip(tile.split(64, dim=1), states, strict=True):
            wanted = WHOLE if part.all() else PARTLY if part.any() else NEVER
            assert sign == wanted


def test_kept_pages(seed: int) -> None:
    draw = random.Random(seed)
    kept = [[page for page in range(5) if draw.random() < 0.5] for _ in range(5)]
    dense = tile_states(300, 300)
    for tile, (states, pages) in enumerate(zip(tile_states(300, 300, kept), kept, strict=True)):
        for page, sign in enumerate(states):
            before = dense[tile][page]
            assert sign == (before if page in pages or before == NEVER else SKIPPED)


def test_lists_of_one_head() -> None:
    """Everything kept: each tile reads the pages up to its own last row, and nothing is skipped."""
    batch = PagedBatch.of([100], [200], [[1, 2, 3, 4]])
    kept = kept_lists(KeptPages.all_of(batch, 2), 1)
    assert kept == [[0, 1, 2], [0, 1, 2, 3]]
    assert tile_states(100, 200, kept) == tile_states(100, 200)


def test_the_picture_shows_each_tile() -> None:
    picture = attention_tile(130, 258, kept=[[0, 2], [0, 2, 3], [0, 3, 4]])
    root = root_of(picture)
    states = "".join(tile_states(130, 258, [[0, 2], [0, 2, 3], [0, 3, 4]]))
    for sign, colour in COLOURS.items():
        assert len(boxes(root, colour)) == states.count(sign) + (sign in states)  # and one of the legend
    computed = states.count(WHOLE) + states.count(PARTLY)
    assert f"{computed} of 15 tiles computed" in picture.alt and f"{states.count(SKIPPED)} skipped" in picture.alt
    assert picture.text.splitlines()[-1].endswith(states[-5:])


def test_many_tiles_stay_small() -> None:
    picture = attention_tile(4096, 32768)
    root_of(picture)
    assert len(picture.svg) < 60_000


def test_one_row() -> None:
    assert tile_states(1, 65) == [WHOLE * 2]
    assert "1 row of queries, 65 keys: 2 of 2 tiles" in attention_tile(1, 65).text


@pytest.mark.parametrize("given", [(0, 5), (6, 5), (5, 5, [])])
def test_what_cannot_be_is_refused(given: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"rows of|lists of pages"):
        attention_tile(*given)


def test_the_reference_has_the_same_mask() -> None:
    assert torch.equal(causal_mask(2, 3), torch.tensor([[True, True, False], [True, True, True]]))
