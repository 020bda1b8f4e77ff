"""How the lanes of a warp add up: one row for each shuffle, with the number of values that each lane holds so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.lab.drawing import counted, document, words
from labkit.lab.picture import SvgPicture

LANES = 32
CELL, ROW, LEFT, MARGIN = 22, 58, 96, 8  # pixels
SHADES = ("#ffffff", "#deebf7", "#bdd7ee", "#92c5de", "#6baed6", "#56a0d3")  # for 1, 2, 4, 8, 16, 32 values


def held_values(sources: Sequence[Any]) -> list[list[int]]:
    """How many lanes' values each lane holds before the first shuffle and after each one.

    sources: for each shuffle int [32], the lane that each lane receives from; every lane adds what it receives. A lane
    that receives from itself (a shuffle up or down past the end) adds its own value again: that counts as no new one.
    """
    held = [frozenset([lane]) for lane in range(LANES)]
    rows = [[1] * LANES]
    for source in sources:
        origin = [int(lane) for lane in np.asarray(source).ravel()]
        held = [mine | held[origin[lane]] for lane, mine in enumerate(held)]
        rows.append([len(lanes) for lanes in held])
    return rows


def reduction_tree(sources: Sequence[Any], title: str = "") -> SvgPicture:
    """Draw the shuffles of one warp, the first one on top; ``sources`` as of ``held_values``.

    Raises ValueError if a shuffle has not 32 lanes.
    """
    steps = [[int(lane) for lane in np.asarray(source).ravel()] for source in sources]
    if any(len(step) != LANES for step in steps):
        raise ValueError("each shuffle needs the source of all 32 lanes")
    held = held_values(steps)
    full = sum(count == LANES for count in held[-1])
    facts = f"{counted(len(steps), 'shuffle')}, then {counted(full, 'lane')} of 32 hold the sum of all"
    head = f"{title}: {facts}" if title else facts
    text = "\n".join([head, *_text(steps, held)])
    distances = ", ".join(_distance(step) for step in steps)
    return SvgPicture(svg=_svg(steps, held, head), alt=f"Reduction tree. {head}. Partners: {distances}.", text=text)


def _distance(step: Sequence[int]) -> str:
    """The rule that gives the partner, where there is one: xor of the lane numbers, or a distance."""
    xors = {lane ^ source for lane, source in enumerate(step)}
    if len(xors) == 1:
        return f"lane ^ {xors.pop()}"
    shifts = {source - lane for lane, source in enumerate(step) if source != lane}
    return f"lane {min(shifts):+}" if len(shifts) == 1 else "mixed"


def _text(steps: Sequence[Sequence[int]], held: Sequence[Sequence[int]]) -> list[str]:
    names = ["start", *map(_distance, steps)]
    return [f"{name:10} {' '.join(f'{count:2}' for count in row)}" for name, row in zip(names, held, strict=True)]


def _svg(steps: Sequence[Sequence[int]], held: Sequence[Sequence[int]], head: str) -> str:
    top = 66
    parts = [words(MARGIN, 14, head, anchor="start", bold=True), words(LEFT - 8, 40, "lane", anchor="end")]
    parts += [words(LEFT + (lane + 0.5) * CELL, 40, str(lane), size=10) for lane in range(LANES)]
    for i, step in enumerate(steps):
        parts.append(_lines(step, top + i * ROW))
        parts.append(words(LEFT - 8, top + (i + 0.5) * ROW, _distance(step), anchor="end"))
    parts += [_row(row, top + i * ROW) for i, row in enumerate(held)]
    return document(LEFT + LANES * CELL + MARGIN, top + len(steps) * ROW + 24, parts)


def _lines(step: Sequence[int], y: float) -> str:
    centres = [LEFT + (lane + 0.5) * CELL for lane in range(LANES)]
    moved = [(lane, source) for lane, source in enumerate(step) if source != lane]
    path = "".join(f"M{centres[source]:g} {y:g}L{centres[lane]:g} {y + ROW:g}" for lane, source in moved)
    return f'<path d="{path}" stroke="#999" fill="none"/>'


def _row(counts: Sequence[int], y: float) -> str:
    lanes = (_lane(LEFT + (lane + 0.5) * CELL, y, count) for lane, count in enumerate(counts))
    return f'<g text-anchor="middle" font-size="10">{"".join(lanes)}</g>'


def _lane(x: float, y: float, count: int) -> str:
    shade = SHADES[min(count.bit_length() - 1, len(SHADES) - 1)]
    circle = f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{shade}" stroke="#444"/>'
    return f'{circle}<text x="{x:g}" y="{y:g}" dy="0.35em">{count}</text>'
