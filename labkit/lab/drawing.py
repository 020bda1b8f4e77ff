"""The few SVG shapes that the pictures share."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

FONT = 12  # pixels
# Told apart by lightness as well as by hue, and light enough for black letters.
USED, FETCHED, EMPTY, WARNING = "#56b4e9", "#fbd9b5", "#f2f2f2", "#e8743b"
BLOCKS = ("#56b4e9", "#f0e442", "#a6dcc8", "#e6b3cc")  # of thread blocks, in turn


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """The ``<svg>`` element around the parts, on white ground. Sizes in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" font-family="sans-serif" font-size="{FONT}">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
    )


def words(
    x: float, y: float, text: str, *, anchor: str = "middle", size: float = FONT, bold: bool = False, turn: int = 0
) -> str:
    """A line of text centred on the height ``y``; anchor: "start", "middle" or "end"; turn: degrees, about (x, y)."""
    style = f' text-anchor="{anchor}"' if anchor != "start" else ""
    style += f' font-size="{size:g}"' if size != FONT else ""
    style += ' font-weight="bold"' if bold else ""
    style += f' transform="rotate({turn} {x:g} {y:g})"' if turn else ""
    return f'<text x="{x:g}" y="{y:g}" dy="0.35em"{style}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "white") -> str:
    """A rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "#444", width: float = 1, dashes: str = "") -> str:
    """A straight line; dashes: SVG's stroke-dasharray."""
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width:g}"{style}/>'


def percent(share: float) -> str:
    """A share as a percentage, with one decimal where it is no whole one: ``100%``, ``12.5%``."""
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def counted(number: int, noun: str) -> str:
    """``1 sector``, ``4 sectors``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
