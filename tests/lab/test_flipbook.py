"""A flipbook turns to the page that the slider or a call names, and always has a text."""

from __future__ import annotations

import builtins
from types import ModuleType
from typing import Any

import pytest

from labkit.lab.access_strip import access_strip
from labkit.lab.flipbook import Flipbook, PictureLeaf, picture_book

OTHER = PictureLeaf("other", access_strip([], 4))
LAST = PictureLeaf("last", access_strip([0, 4], 4))


def test_the_slider_turns_pages() -> None:
    book = Flipbook([OTHER, LAST])
    assert book.selected is LAST and [each.title for each in book] == ["other", "last"]
    assert book.view.value == LAST.html
    book.slider.value = "other"  # what a hand on the slider does
    assert book.selected is OTHER and book.view.value == OTHER.html
    assert book.show("last") is book  # so that a notebook shows it
    assert (book.slider.value, book.view.value, book.selected) == ("last", LAST.html, LAST)


def test_the_text_names_the_other_pages() -> None:
    assert repr(Flipbook([OTHER, LAST])) == f"{LAST.text}\nother pages, by .show('other') and so on: other"


def test_a_number_is_a_title() -> None:
    book = picture_book({str(i): LAST.picture for i in range(3)})
    assert book.show(1).selected.title == "1"


def test_there_is_always_the_page_itself() -> None:
    data, metadata = Flipbook([LAST])._repr_mimebundle_()
    assert metadata == {"image/svg+xml": {"alt": LAST.picture.alt}}
    assert data["text/plain"] == LAST.text and data["image/svg+xml"] == LAST.html
    assert "application/vnd.jupyter.widget-view+json" in data


def test_without_widgets_the_page_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> ModuleType:
        if name == "ipywidgets":
            raise ImportError(name)
        return genuine(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    book = Flipbook([OTHER, LAST])
    assert book._repr_mimebundle_()[0] == {"image/svg+xml": LAST.html, "text/plain": repr(book)}
    book.show("other")
    assert repr(book).startswith("0 lanes")


def test_pages_that_are_not_there() -> None:
    with pytest.raises(KeyError, match=r"no page 'x'; there are last"):
        Flipbook([LAST]).show("x")
    with pytest.raises(ValueError, match="no page to show"):
        Flipbook([])


def test_pictures_bring_their_words() -> None:
    book = picture_book({"a": OTHER.picture, "b": LAST.picture}, "stride")
    assert [leaf.title for leaf in book] == ["a", "b"] and book.slider.description == "stride"
    assert 'role="img"' in book.view.value and "2 lanes want 8 bytes" in book.view.value
