"""Which tiles of a causal prefill are computed, which are masked in part, and which are never read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.lab.drawing import EMPTY, FETCHED, USED, WARNING, box, counted, document, percent, words
from labkit.lab.picture import SvgPicture
from labkit.ops.kept_pages import KeptPages
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE

WHOLE, PARTLY, SKIPPED, NEVER = "#", "/", "-", "."
MEANING = {
    WHOLE: "computed whole",
    PARTLY: "computed, masked in part",
    SKIPPED: "not kept: skipped",
    NEVER: "in the future: never read",
}
COLOURS = {WHOLE: USED, PARTLY: WARNING, SKIPPED: FETCHED, NEVER: EMPTY}
LARGEST, LEFT, TOP, MARGIN = 22, 96, 44, 8  # pixels; LARGEST: side of a tile
WIDEST, SMALL = 640, 6  # pixels: of all pages; a side below which tiles are not told apart


def tile_states(rows: int, length: int, kept: Sequence[Sequence[int]] | None = None) -> list[str]:
    """A string for each tile of 64 queries, with a sign (a key of MEANING) for each page of 64 keys.

    rows: the newest tokens of a sequence of ``length``. kept: the pages that each tile reads; None for all. Raises
    ValueError for rows that the sequence has not, and for lists that do not fit.
    """
    if not 1 <= rows <= length:
        raise ValueError(f"{rows} rows of {length} tokens")
    starts = range(length - rows, length, QUERY_TILE)
    if kept is not None and len(kept) != len(starts):
        raise ValueError(f"{len(kept)} lists of pages for {counted(len(starts), 'tile')}")
    lists: Sequence[Sequence[int] | None] = kept or [None] * len(starts)
    return [
        _states(start, min(start + QUERY_TILE, length), length, each) for start, each in zip(starts, lists, strict=True)
    ]


def _states(start: int, end: int, length: int, kept: Sequence[int] | None) -> str:
    """Of the queries at positions start to end - 1."""
    signs = []
    for page, first in enumerate(range(0, length, PAGE_SIZE)):
        if first >= end:
            signs.append(NEVER)
        elif kept is not None and page not in kept:
            signs.append(SKIPPED)
        else:
            last = min(first + PAGE_SIZE, length) - 1
            signs.append(WHOLE if last <= start else PARTLY)
    return "".join(signs)


def kept_lists(kept: KeptPages, head: int) -> list[list[int]]:
    """The pages that each tile reads for one query head, as ``tile_states`` takes them. Of a batch of one sequence."""
    both = zip(kept.index[:, head].tolist(), kept.count[:, head].tolist(), strict=True)
    return [pages[:count] for pages, count in both]


def attention_tile(rows: int, length: int, kept: Sequence[Sequence[int]] | None = None, title: str = "") -> SvgPicture:
    """Draw tiles of 64 queries against pages of 64 keys. Arguments and errors as of ``tile_states``."""
    states = tile_states(rows, length, kept)
    counts = {sign: sum(line.count(sign) for line in states) for sign in MEANING}
    computed, all_tiles = counts[WHOLE] + counts[PARTLY], len(states) * len(states[0])
    head = f"{counted(rows, 'row')} of queries, {counted(length, 'key')}: {computed} of {counted(all_tiles, 'tile')}"
    head += f" computed ({percent(computed / all_tiles)}), {counts[PARTLY]} of them masked in part"
    if kept is not None:
        head += f"; {counts[SKIPPED]} skipped"
    head = f"{title}: {head}" if title else head
    legend = "  ".join(f"{sign} {MEANING[sign]}" for sign in MEANING if counts[sign])
    numbers = [f"{length - rows + QUERY_TILE * i:>7}" for i in range(len(states))]
    lines = [f"{number}  {line}" for number, line in zip(numbers, states, strict=True)]
    text = "\n".join([head, legend, "from position, page by page:", *lines])
    return SvgPicture(_svg(states, numbers, head, counts), f"Tiles of a causal attention. {head}.", text)


def _svg(states: Sequence[str], numbers: Sequence[str], head: str, counts: dict[str, int]) -> str:
    side = min(LARGEST, WIDEST / len(states[0]))
    parts = [words(MARGIN, 10, head, anchor="start", bold=True, size=11)]
    parts.append(words(LEFT, TOP - 10, "pages of keys", anchor="start", size=10))
    every, stroke = math.ceil(12 / side), "white" if side >= SMALL else "none"  # numbers do not stand on each other
    for i, (number, states_of_tile) in enumerate(zip(numbers, states, strict=True)):
        y = TOP + i * side
        if i % every == 0:
            parts.append(words(LEFT - 6, y + side / 2, f"query {number.strip()}", anchor="end", size=9))
        for start, end, sign in _runs(states_of_tile, single=side >= SMALL):
            parts.append(box(LEFT + start * side, y, (end - start) * side, side, COLOURS[sign], stroke))
    parts += _legend(TOP + len(states) * side + 14, counts)
    used = sum(1 for count in counts.values() if count)
    width = max(LEFT + len(states[0]) * side, LEFT + 560)
    return document(width + MARGIN, TOP + len(states) * side + 14 + 18 * used + MARGIN, parts)


def _runs(states: str, *, single: bool) -> list[tuple[int, int, str]]:
    """(first, behind the last, sign) of equal neighbours, or of each page alone."""
    ends = [i for i in range(1, len(states) + 1) if single or i == len(states) or states[i] != states[i - 1]]
    return [(start, end, states[start]) for start, end in zip([0, *ends], ends, strict=False)]


def _legend(top: float, counts: dict[str, int]) -> list[str]:
    parts = []
    for i, sign in enumerate(sign for sign in MEANING if counts[sign]):
        parts.append(box(LEFT, top + 18 * i, 12, 12, COLOURS[sign], "#666"))
        parts.append(words(LEFT + 20, top + 18 * i + 6, f"{MEANING[sign]}: {counts[sign]}", anchor="start"))
    return parts
