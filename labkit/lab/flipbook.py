"""Pages to leaf through with a slider, which show as plain text where there are no widgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from labkit.lab.picture import SvgPicture


class Leaf(Protocol):
    """A page: its title on the slider, its content in HTML (or SVG, as ``mime`` says), in plain text, and in words."""

    @property
    def mime(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def html(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def alt(self) -> str: ...


@dataclass(frozen=True)
class PictureLeaf:
    """A page with one picture."""

    title: str
    picture: SvgPicture
    mime: str = "image/svg+xml"

    @property
    def html(self) -> str:
        """The drawing, with its words as label."""
        data, _ = self.picture._repr_mimebundle_()
        return data[self.mime]

    @property
    def text(self) -> str:
        """The picture in plain text."""
        return self.picture.text

    @property
    def alt(self) -> str:
        """The picture in one or two sentences."""
        return self.picture.alt


class Flipbook:
    """Shows one page at a time: by a slider, or by ``show`` where there are no widgets.

    slider, view: its widgets; None without ipywidgets. selected: the page that shows; the last one at first.
    Raises ValueError without pages.
    """

    def __init__(self, leaves: Sequence[Leaf], name: str = "page") -> None:
        if not leaves:
            raise ValueError("there is no page to show")
        self.leaves = list(leaves)
        self.selected = self.leaves[-1]
        self.slider: Any = None
        self.view: Any = None
        self._box: Any = None
        try:
            import ipywidgets
        except ImportError:
            return
        self._build(ipywidgets, name)

    def show(self, title: str | int) -> Flipbook:
        """Turn to a page; a notebook shows it, since the book itself is what this returns.

        title: 7 is the page "7". Raises KeyError, with the titles that there are, for another title.
        """
        chosen = next((leaf for leaf in self.leaves if leaf.title == str(title)), None)
        if chosen is None:
            raise KeyError(f"no page {title!r}; there are {', '.join(leaf.title for leaf in self.leaves)}")
        self.selected = chosen
        if self.view is not None:
            self.slider.value, self.view.value = chosen.title, chosen.html
        return self

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.leaves)

    def __repr__(self) -> str:
        others = [leaf.title for leaf in self.leaves if leaf is not self.selected]
        named = f"\nother pages, by .show({others[0]!r}) and so on: {', '.join(others)}" if others else ""
        return self.selected.text + named

    def _repr_mimebundle_(self, **settings: Any) -> Any:
        """The widgets where there are any, and always the page itself, for front ends that cannot show them."""
        widgets = {} if self._box is None else self._box._repr_mimebundle_(**settings)
        page, mime = self.selected, self.selected.mime
        return {**widgets, mime: page.html, "text/plain": repr(self)}, {mime: {"alt": page.alt}}

    def _build(self, ipywidgets: Any, name: str) -> None:
        titles = [leaf.title for leaf in self.leaves]
        self.slider = ipywidgets.SelectionSlider(options=titles, value=self.selected.title, description=name)
        self.view = ipywidgets.HTML(self.selected.html)
        self.slider.observe(lambda change: self.show(change["new"]), names="value")
        self._box = ipywidgets.VBox([self.slider, self.view])


def picture_book(pictures: Mapping[str, SvgPicture], name: str = "page") -> Flipbook:
    """A flipbook of pictures by title."""
    return Flipbook([PictureLeaf(title, picture) for title, picture in pictures.items()], name)
