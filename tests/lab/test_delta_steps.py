"""The pages of the delta rule: what a key finds, what is written, and the state that follows."""

from __future__ import annotations

import pytest
import torch
from helpers.drawings import root_of

from labkit.lab.delta_steps import delta_steps
from labkit.lab.flipbook import PictureLeaf


def page_lines(title: str, **given: torch.Tensor) -> list[str]:
    leaf = delta_steps(**given).show(title).selected
    assert isinstance(leaf, PictureLeaf)
    root_of(leaf.picture)
    return leaf.text.splitlines()


def matrix(lines: list[str], name: str) -> list[list[float]]:
    """The numbers under a name, until the next one."""
    first = lines.index(f"{name}:") + 1
    rows = []
    for line in lines[first:]:
        if line.endswith(":"):
            break
        rows.append([0.0 if word == "." else float(word) for word in line.split()])
    return rows


GIVEN = {
    "k": torch.eye(2)[[0, 0, 1]],
    "v": torch.tensor([[4.0, 0.0], [1.0, 2.0], [8.0, 8.0]]),
    "g": torch.tensor([1.0, 1.0, 0.5]).log(),
    "beta": torch.tensor([1.0, 0.5, 1.0]),
}


def test_half_of_the_difference_is_written() -> None:
    lines = page_lines("2", **GIVEN)
    assert matrix(lines, "S before") == [[4, 0], [0, 0]]
    assert matrix(lines, "found: (e^g S)^T k") == [[4, 0]]
    assert matrix(lines, "d = beta (v - found)") == [[-1.5, 1]]
    assert matrix(lines, "S after = e^g S + k d^T") == [[2.5, 1], [0, 0]]


def test_the_state_fades_first() -> None:
    lines = page_lines("3", **GIVEN)
    assert lines[0] == "token 3: e^g = 0.50, beta = 1.00"
    assert matrix(lines, "e^g S") == [[1.25, 0.5], [0, 0]]
    assert matrix(lines, "S after = e^g S + k d^T") == [[1.25, 0.5], [8, 8]]


def test_a_page_for_each_token() -> None:
    assert [leaf.title for leaf in delta_steps(**GIVEN)] == ["1", "2", "3"]


@pytest.mark.parametrize("name", list(GIVEN))
def test_other_shapes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"keys .* values"):
        delta_steps(**{**GIVEN, name: GIVEN[name][:2]})
