"""A pool of KV pages: which sequence holds which, how full they are, and the page tables that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.lab.drawing import BLOCKS, EMPTY, FETCHED, box, counted, document, percent, words
from labkit.lab.picture import SvgPicture
from labkit.ops.layout import PAGE_SIZE

CELL, HEIGHT, ACROSS, GAP, MARGIN, TITLE = 56, 30, 12, 14, 8, 26  # pixels; ACROSS: pages in a line
PADDING = "pad"  # what page 0 is for: entries behind the end of a table


@dataclass(frozen=True)
class Held:
    """A page in use: whose it is, the how manieth of its table, and how many tokens lie in it."""

    name: str
    number: int
    tokens: int

    @property
    def label(self) -> str:
        return f"{self.name}{self.number}"


def held_pages(
    tables: Mapping[str, Sequence[int]], lengths: Mapping[str, int], num_pages: int, page_size: int = PAGE_SIZE
) -> dict[int, Held]:
    """Page -> who holds it. tables, lengths: by the name of a sequence.

    Raises ValueError for a page that two hold or that is not in the pool, and for a table too short for its tokens.
    """
    held: dict[int, Held] = {}
    for name, table in tables.items():
        if len(table) * page_size < lengths[name]:
            raise ValueError(f"{name} has {lengths[name]} tokens, and {counted(len(table), 'page')} for them")
        for number, page in enumerate(table):
            if page in held or not 0 < page < num_pages:
                raise ValueError(f"{name} cannot have page {page}: it is held, page 0, or not in the pool")
            held[page] = Held(name, number, min(page_size, max(0, lengths[name] - number * page_size)))
    return held


def page_map(
    tables: Mapping[str, Sequence[int]],
    lengths: Mapping[str, int],
    num_pages: int,
    title: str = "",
    page_size: int = PAGE_SIZE,
) -> SvgPicture:
    """Draw the pool page by page, and below it the table of each sequence.

    The label of a page names its sequence and its place in that one's table; the coloured part holds tokens. Errors
    as of ``held_pages``.
    """
    held = held_pages(tables, lengths, num_pages, page_size)
    tokens, places = sum(lengths.values()), len(held) * page_size
    head = (
        f"pool of {counted(num_pages, 'page')}: {counted(len(tables), 'sequence')} hold {len(held)},"
        f" {num_pages - 1 - len(held)} free; {tokens} of {counted(places, 'place')} hold tokens"
    )
    if places:
        head += f" ({percent(tokens / places)})"
    head = f"{title}: {head}" if title else head
    rows = [f"{name}: {lengths[name]} tokens in pages {_list(table)}" for name, table in tables.items()]
    svg = _svg(held, tables, num_pages, head, rows, page_size)
    return SvgPicture(svg, f"Pages of a KV pool. {head}. {'; '.join(rows)}.", _text(held, num_pages, head, rows))


def _list(table: Sequence[int]) -> str:
    return " ".join(map(str, table)) or "none"


def _text(held: Mapping[int, Held], num_pages: int, head: str, rows: Sequence[str]) -> str:
    lines = [head]
    for start in range(0, num_pages, ACROSS):
        pages = range(start, min(start + ACROSS, num_pages))
        lines.append("page " + "".join(f"{page:>5}" for page in pages))
        lines.append("     " + "".join(f"{_label(held, page):>5}" for page in pages))
    return "\n".join([*lines, *rows])


def _label(held: Mapping[int, Held], page: int) -> str:
    if page == 0:
        return PADDING
    return held[page].label if page in held else "."


def _svg(
    held: Mapping[int, Held],
    tables: Mapping[str, Sequence[int]],
    num_pages: int,
    head: str,
    rows: Sequence[str],
    page_size: int,
) -> str:
    colours = {name: BLOCKS[i % len(BLOCKS)] for i, name in enumerate(tables)}
    lines = -(-num_pages // ACROSS)
    parts = [words(MARGIN, 12, head, anchor="start", bold=True, size=11)]
    for page in range(num_pages):
        x = MARGIN + CELL * (page % ACROSS)
        y = TITLE + (HEIGHT + GAP) * (page // ACROSS)
        parts += _page(x, y, page, held, colours, page_size)
    top = TITLE + lines * (HEIGHT + GAP) + 8
    for i, (name, row) in enumerate(zip(tables, rows, strict=True)):
        parts.append(box(MARGIN, top + 18 * i, 14, 14, colours[name], "#666"))
        parts.append(words(MARGIN + 22, top + 18 * i + 7, row, anchor="start"))
    return document(2 * MARGIN + ACROSS * CELL, top + 18 * len(rows) + MARGIN, parts)


def _page(
    x: float, y: float, page: int, held: Mapping[int, Held], colours: Mapping[str, str], page_size: int
) -> list[str]:
    """One box: grey where nothing lies, the number of the page below."""
    parts = [box(x, y, CELL - 4, HEIGHT, FETCHED if page == 0 else EMPTY, "#666")]
    if page in held:
        owner = held[page]
        parts.append(box(x, y, (CELL - 4) * owner.tokens / page_size, HEIGHT, colours[owner.name], "#666"))
    label = _label(held, page)
    if label != ".":
        parts.append(words(x + CELL / 2 - 2, y + HEIGHT / 2, label, bold=True))
    return [*parts, words(x + CELL / 2 - 2, y + HEIGHT + 7, str(page), size=9)]
