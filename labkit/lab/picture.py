"""A picture that every notebook front end can show: SVG, and plain text where there is no SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True, repr=False)
class SvgPicture:
    """An SVG drawing with its words.

    svg: one ``<svg ...>`` element that names its namespace.
    alt: one or two sentences for those who do not see it; they become its ``aria-label``.
    text: the same content in plain text, for terminals.
    """

    svg: str
    alt: str
    text: str

    def __post_init__(self) -> None:
        if not self.svg.startswith("<svg "):
            raise ValueError("the drawing has to start with its <svg ...> element")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        """Data and metadata for Jupyter, which picks the richest form it can show."""
        label = f'<svg role="img" aria-label="{escape(self.alt)}" '
        data = {"image/svg+xml": label + self.svg.removeprefix("<svg "), "text/plain": self.text}
        return data, {"image/svg+xml": {"alt": self.alt}}
