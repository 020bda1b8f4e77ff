"""The reduction picture counts the values that each lane holds."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.drawings import SVG, root_of, texts

from labkit.lab.reduction_tree import held_values, reduction_tree

LANES = np.arange(32)
BUTTERFLY = [LANES ^ distance for distance in (16, 8, 4, 2, 1)]
DOWN = [np.where(LANES + distance < 32, LANES + distance, LANES) for distance in (16, 8, 4, 2, 1)]


def test_butterfly_doubles_in_every_lane() -> None:
    assert [set(row) for row in held_values(BUTTERFLY)] == [{1}, {2}, {4}, {8}, {16}, {32}]
    assert reduction_tree(BUTTERFLY).text.startswith("5 shuffles, then 32 lanes of 32 hold the sum of all")


def test_shuffles_down_fill_lane_zero_only() -> None:
    assert held_values(DOWN)[-1][0] == 32
    assert "then 1 lane of 32 hold" in reduction_tree(DOWN).text
    assert [line.split()[:2] for line in reduction_tree(DOWN).text.splitlines()[2:]] == [
        ["lane", f"+{distance}"] for distance in (16, 8, 4, 2, 1)
    ]


def test_a_step_left_out_leaves_half() -> None:
    assert set(held_values(BUTTERFLY[:2] + BUTTERFLY[3:])[-1]) == {16}
    assert "then 0 lanes of 32" in reduction_tree(BUTTERFLY[1:]).text


def test_a_step_repeated_adds_no_new_value() -> None:
    assert set(held_values([LANES ^ 1, LANES ^ 1])[-1]) == {2}


def test_picture_has_a_circle_for_each_lane_and_row() -> None:
    root = root_of(reduction_tree(BUTTERFLY, title="warp 0"))
    assert len(list(root.iter(f"{SVG}circle"))) == 32 * 6
    assert {"lane ^ 16", "lane ^ 1", "warp 0: 5 shuffles, then 32 lanes of 32 hold the sum of all"} <= set(texts(root))


def test_a_permutation_without_a_rule(seed: int) -> None:
    draw = np.random.default_rng(seed)
    assert "mixed" in reduction_tree([draw.permutation(np.roll(LANES, 3))]).alt


def test_a_shuffle_of_half_a_warp_is_refused() -> None:
    with pytest.raises(ValueError, match="all 32 lanes"):
        reduction_tree([LANES[:16]])
