"""Matrices in a picture: every number is where it belongs, zeros are blank, long lines go on below."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import boxes, root_of, texts

from labkit.lab.drawing import EMPTY
from labkit.lab.matrix_row import MOST_CELLS, WIDEST, matrix_row


def test_numbers_and_blanks() -> None:
    lower = torch.tensor([[1.0, 0.0], [-0.25, 2.0]])
    picture = matrix_row("two of them", {"A": lower, "v": torch.tensor([[3.5]])})
    root = root_of(picture)
    assert {"A", "v", "1.00", "-0.25", "2.00", "3.50"} <= set(texts(root)) and "0.00" not in texts(root)
    assert len(boxes(root, EMPTY)) == 1
    assert picture.text.splitlines() == ["two of them", "A:", "    1.00      .", "   -0.25   2.00", "v:", "    3.50"]
    assert "A [2 x 2]" in picture.alt and "v [1 x 1]" in picture.alt


def test_signs_differ_in_colour_and_size_in_depth() -> None:
    root = root_of(matrix_row("one", {"A": torch.tensor([[4.0, 1.0, -4.0, -1.0]])}))
    fills = [rect.get("fill") for rect in root.iter() if rect.get("stroke") == "#bbb"]
    assert len(set(fills)) == 4
    depth = [sum(bytes.fromhex(fill[1:])) for fill in fills if fill]
    assert depth[0] < depth[1] and depth[2] < depth[3]


def test_lines_are_apart_and_long_ones_go_on_below() -> None:
    wide = {f"m{i}": torch.ones(2, 7) for i in range(4)}
    root = root_of(matrix_row("many", wide, {"below": torch.ones(1, 1)}))
    assert float(root.attrib["width"]) <= WIDEST + 40
    at = {text.text: float(text.attrib["y"]) for text in root.iter() if text.text in {*wide, "below"}}
    assert at["m0"] == at["m1"] < at["m2"] == at["m3"] < at["below"]


@pytest.mark.parametrize(
    "lines",
    [[], [{}], [{"A": torch.ones(3)}], [{"A": torch.ones(0, 2)}], [{"A": torch.ones(MOST_CELLS + 1, 1)}]],
)
def test_what_is_no_picture_is_refused(lines: list[dict[str, torch.Tensor]]) -> None:
    with pytest.raises(ValueError, match=r"matrices of|cannot be read"):
        matrix_row("none", *lines)
