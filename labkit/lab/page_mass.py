"""How much attention a tile of queries pays to each page, beside the pages that sparse prefill has chosen."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.lab.drawing import BLOCKS, EMPTY, USED, WARNING, box, counted, document, line, percent, words
from labkit.lab.picture import SvgPicture
from labkit.ops.sparse_settings import SparseSettings

SINK, RECENT, OWN, ANCHOR, LEFT_OUT = "S", "R", "O", "A", "."
MEANING = {
    SINK: "sink: always kept",
    ANCHOR: "anchor: kept for its score",
    RECENT: "recent: always kept",
    OWN: "the tile's own",
    LEFT_OUT: "left out",
}
COLOURS = {SINK: BLOCKS[1], ANCHOR: USED, RECENT: BLOCKS[2], OWN: BLOCKS[3], LEFT_OUT: EMPTY}
WIDTH, HEIGHT, LEFT, TOP, STRIP, NUMBERS, FOOT = 640, 150, 52, 40, 14, 34, 8  # pixels; WIDTH and HEIGHT of the plot
MARKS = (0.01, 0.1, 0.33, 1.0)  # shares that the axis names


def reasons(kept: Tensor, settings: SparseSettings) -> str:
    """A sign (a key of MEANING) for each page of kept, bool [P]; the last page is the tile's own."""
    last = len(kept) - 1
    signs = []
    for page, is_kept in enumerate(kept.tolist()):
        if page == last:
            signs.append(OWN)
        elif page < settings.sink:
            signs.append(SINK)
        elif page >= last - settings.recent:
            signs.append(RECENT)
        else:
            signs.append(ANCHOR if is_kept else LEFT_OUT)
    return "".join(signs)


def page_mass(
    shares: Tensor, kept: Tensor, settings: SparseSettings, needles: Sequence[int] = (), title: str = ""
) -> SvgPicture:
    """Draw what a tile pays to each page: bars for the mean of its rows, ticks for the row that pays most.

    shares: [rows, P], each row's sum is 1; kept: bool [P]; needles: pages to mark. Raises ValueError for pages that are
    not there.
    """
    count = len(kept)
    if shares.dim() != 2 or shares.shape[1] != count or not all(0 <= page < count for page in needles):
        raise ValueError(f"shares {list(shares.shape)} and needles {list(needles)} of {count} pages")
    mean, most, signs = shares.mean(0).tolist(), shares.amax(0).tolist(), reasons(kept, settings)
    held = sum(share for share, sign in zip(mean, signs, strict=True) if sign != LEFT_OUT)
    chosen = count - signs.count(LEFT_OUT)
    head = f"{chosen} of {counted(count, 'page')} kept ({percent(chosen / count)}), {percent(held)} of the attention"
    head = f"{title}: {head}" if title else head
    spots = sorted(set(needles))
    found = [f"page {page}: {percent(mean[page])} on average, {percent(most[page])} of one row" for page in spots]
    return SvgPicture(_svg(mean, most, signs, spots, head), _alt(head, found), _text(mean, most, signs, spots, head))


def _alt(head: str, found: list[str]) -> str:
    marked = f" Marked needles: {'; '.join(found)}." if found else ""
    return f"Attention of a tile to each page, and the pages kept. {head}.{marked}"


def _text(mean: list[float], most: list[float], signs: str, needles: Sequence[int], head: str) -> str:
    rows = {"mean of rows": mean, "most of a row": most}
    lines = [
        head,
        f"{'page':14}{''.join(str(page // 10 % 10) if page % 10 == 0 else ' ' for page in range(len(signs)))}",
    ]
    lines += [f"{name:14}{''.join(map(_tenths, values))}" for name, values in rows.items()]
    lines.append(f"{'kept':14}{signs}")
    if needles:
        lines.append(f"{'needle':14}{''.join('^' if page in needles else ' ' for page in range(len(signs)))}".rstrip())
    meaning = "  ".join(f"{sign} {MEANING[sign]}" for sign in MEANING if sign in signs)
    return "\n".join([*lines, "attention in tenths (.: less than a hundredth, 0: less than a tenth)", meaning])


def _tenths(share: float) -> str:
    return "." if share < 0.01 else str(min(9, int(10 * share)))


def _svg(mean: list[float], most: list[float], signs: str, needles: Sequence[int], head: str) -> str:
    base, step = TOP + HEIGHT, WIDTH / len(signs)
    parts = [words(LEFT, 12, head, anchor="start", bold=True, size=11)]
    for mark in MARKS:  # heights are square roots, so that a hundredth is still to be seen
        y = base - _height(mark)
        parts += [words(LEFT - 6, y, f"{mark:.0%}", anchor="end", size=10), line(LEFT, y, LEFT + WIDTH, y, "#ddd")]
    for page, (bar, top, sign) in enumerate(zip(mean, most, signs, strict=True)):
        x = LEFT + page * step
        parts.append(box(x + 0.15 * step, base - _height(bar), 0.7 * step, _height(bar), "#666", "none"))
        parts.append(line(x + 0.1 * step, base - _height(top), x + 0.9 * step, base - _height(top), WARNING, 2))
        parts.append(box(x, base + 4, step, STRIP, COLOURS[sign], "#999"))
    parts += [words(LEFT + (page + 0.5) * step, TOP - 10, "▼", size=12) for page in needles]
    parts.append(line(LEFT, base, LEFT + WIDTH, base))
    every, below = max(1, round(10 * len(signs) / 64)), base + 4 + STRIP
    for page in range(0, len(signs), every):
        parts.append(words(LEFT + (page + 0.5) * step, below + 9, str(page), size=10))
    parts.append(words(LEFT - 6, below + 9, "page", anchor="end", size=10))
    parts += _legend(below + NUMBERS, signs, bool(needles))
    return document(LEFT + WIDTH + 12, below + NUMBERS + 18 * 3 + FOOT, parts)


def _height(share: float) -> float:
    return float(HEIGHT * max(share, 0.0) ** 0.5)


def _legend(top: float, signs: str, needles: bool) -> list[str]:
    note = "bar: mean of the rows; tick: the row that pays most (heights are square roots)"
    parts = [words(LEFT, top + 6, note + ("; ▼ needle" if needles else ""), anchor="start", size=11)]
    for i, sign in enumerate(sign for sign in MEANING if sign in signs):
        x, y = LEFT + 220 * (i % 3), top + 18 * (1 + i // 3)
        parts.append(box(x, y, 12, 12, COLOURS[sign], "#666"))
        parts.append(words(x + 18, y + 6, f"{MEANING[sign]}: {signs.count(sign)}", anchor="start", size=11))
    return parts
