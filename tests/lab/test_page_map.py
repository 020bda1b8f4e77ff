"""The picture of the pool says who holds which page, and refuses tables that cannot be."""

from __future__ import annotations

import pytest
from helpers.drawings import boxes, root_of, texts

from labkit.lab.drawing import BLOCKS, FETCHED
from labkit.lab.page_map import CELL, held_pages, page_map

TABLES, LENGTHS = {"A": [5, 2, 9], "B": [1]}, {"A": 150, "B": 64}


def test_who_holds_what() -> None:
    held = held_pages(TABLES, LENGTHS, 12)
    assert {page: owner.label for page, owner in held.items()} == {5: "A0", 2: "A1", 9: "A2", 1: "B0"}
    assert [held[page].tokens for page in (5, 2, 9, 1)] == [64, 64, 22, 64]
    assert held_pages({"A": [1, 2]}, {"A": 3}, 3, page_size=4)[2].tokens == 0


def test_the_picture_and_its_words() -> None:
    picture = page_map(TABLES, LENGTHS, 14, title="two chats")
    root = root_of(picture)
    assert {"A0", "A1", "A2", "B0", "pad", "13"} <= set(texts(root))
    pages = [each for each in boxes(root, BLOCKS[0]) if each.attrib["height"] == "30"]
    widths = sorted(float(each.attrib["width"]) for each in pages)
    assert widths == pytest.approx([(CELL - 4) * 22 / 64, CELL - 4, CELL - 4], abs=1e-3)
    assert len(boxes(root, FETCHED)) == 1  # page 0
    head = "two chats: pool of 14 pages: 2 sequences hold 4, 9 free; 214 of 256 places hold tokens (83.6%)"
    assert picture.text.startswith(head) and head in picture.alt
    assert "A: 150 tokens in pages 5 2 9" in picture.text


def test_text_and_tables_agree() -> None:
    lines = page_map(TABLES, LENGTHS, 14).text.splitlines()
    found: dict[str, int] = {}
    for numbers, labels in zip(lines[1:5:2], lines[2:5:2], strict=True):
        found |= {label: int(page) for page, label in zip(numbers.split()[1:], labels.split(), strict=True)}
    del found["."]
    assert found == {"pad": 0, "A0": 5, "A1": 2, "A2": 9, "B0": 1}


def test_an_empty_pool() -> None:
    picture = page_map({}, {}, 3)
    assert "0 sequences hold 0, 2 free" in picture.text
    root_of(picture)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"A": [1, 2], "B": [2]}, "B cannot have page 2"),
        ({"A": [0, 2], "B": []}, "A cannot have page 0"),
        ({"A": [9, 1], "B": []}, "A cannot have page 9"),
        ({"A": [1], "B": []}, "A has 100 tokens, and 1 page for them"),
    ],
)
def test_books_that_do_not_balance(tables: dict[str, list[int]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        page_map(tables, {"A": 100, "B": 0}, 9)
