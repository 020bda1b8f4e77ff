"""Which lane holds which element of the matrices that ``mma.m8n8k4`` multiplies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from labkit.lab.drawing import BLOCKS, EMPTY, WARNING, box, document, words
from labkit.lab.picture import SvgPicture
from labkit.sim.mma import COLUMN, HIGH, LOW, QUAD_PAIR, ROW

CELL, HEIGHT, LEFT, GAP, TITLE, MARGIN = 23, 18, 30, 12, 34, 8  # pixels: of an element, and around the matrices
WARP, K = 32, 4
OPERANDS = {"A": "a", "B": "b", "C": "c"}  # and the name of a lane's registers in it

# First row and column of the 8 x 8 tile of C that each quad-pair computes.
TILINGS = {"2x2": ((0, 0), (8, 0), (0, 8), (8, 8)), "1x4": ((0, 0), (0, 8), (0, 16), (0, 24))}

Place = tuple[int, int]  # row, column
Box = tuple[Place, ...]  # neighbouring elements that one lane holds in consecutive registers


def lane_elements(operand: str, lane: int, tiling: str = "2x2") -> list[Place]:
    """(row, column) of what a lane holds of "A" (row-major), "B" (column-major), or "C" and D (fp32), by register.

    tiling: "2x2", where the four quad-pairs make 16 x 16 results of C, or "1x4", where they make 8 x 32. Source: PTX
    ISA, "Matrix fragments for mma.m8n8k4 with .f16 floating point type". Raises ValueError for other words and lanes.
    """
    if operand not in OPERANDS or tiling not in TILINGS or not 0 <= lane < WARP:
        raise ValueError(f"no operand {operand!r}, tiling {tiling!r} or lane {lane}")
    row, column = TILINGS[tiling][QUAD_PAIR[lane]]
    across = 4 * int(HIGH[lane]) + int(LOW[lane])
    if operand == "A":
        return [(row + across, k) for k in range(K)]
    if operand == "B":
        return [(k, column + across) for k in range(K)]
    return [(row + int(ROW["f32"][i, lane]), column + int(COLUMN["f32"][i, lane])) for i in range(8)]


def fragment_map(tiling: str = "2x2", lane: int | None = None) -> SvgPicture:
    """Draw A [M, 4], B [4, N] and C [M, N] with the lane that holds each element; lane: one to be marked.

    What a lane holds side by side is one box; several lanes in a box hold the same elements. Raises ValueError as
    ``lane_elements``.
    """
    owners = {operand: _owners(operand, tiling) for operand in OPERANDS}
    rows, columns = (1 + max(place[axis] for boxes in owners["C"] for place in boxes) for axis in (0, 1))
    head = f"quad-pairs {tiling}: C is {rows} x {columns}"
    if lane is not None:
        held = (f"{name} {_where(lane_elements(name, lane, tiling))}" for name in OPERANDS)
        head += f"; lane {lane} holds {', '.join(held)}"
    drawing = _svg(tiling, owners, columns, lane, head)
    alt = f"Which lane holds which element of A, B and C. {head[0].upper()}{head[1:]}."
    return SvgPicture(svg=drawing, alt=alt, text="\n".join([head, *_text(owners, rows, columns)]))


def _where(places: Sequence[Place]) -> str:
    """``[2][0..3]`` or, for scattered elements, ``rows 0 2, columns 0 1 4 5``."""
    rows, columns = ([*dict.fromkeys(sorted(place[axis] for place in places))] for axis in (0, 1))
    if len(places) == K:
        return f"[{_span(rows)}][{_span(columns)}]"
    return f"rows {' '.join(map(str, rows))}, columns {' '.join(map(str, columns))}"


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}..{numbers[-1]}"


def _owners(operand: str, tiling: str) -> dict[Box, list[int]]:
    """The boxes of a matrix, and the lanes that hold each."""
    owners: defaultdict[Box, list[int]] = defaultdict(list)
    size = 2 if operand == "C" else K
    for lane in range(WARP):
        places = lane_elements(operand, lane, tiling)
        for start in range(0, len(places), size):
            owners[tuple(places[start : start + size])].append(lane)
    return dict(owners)


def _text(owners: dict[str, dict[Box, list[int]]], rows: int, columns: int) -> list[str]:
    """The lanes of each column of B, below them a line for each row: the lanes that hold A's, and C's two by two."""
    a, b, c = ({places[0]: lanes for places, lanes in boxes.items()} for boxes in owners.values())
    left = 3 * len(a[0, 0]) + 4  # columns of text before B and C
    lines = ["lanes that hold each column of B; below, each row of A and each pair of elements of C"]
    for sharer in range(len(b[0, 0])):
        lines.append("B".ljust(left) + "".join(f"{b[0, column][sharer]:>3}" for column in range(columns)))
    for row in range(rows):
        shared = " ".join(f"{lane:>2}" for lane in a[row, 0])
        pairs = "".join(f"{c[row, column][0]:>5} " for column in range(0, columns, 2))
        lines.append(f"A {shared}  {pairs}".rstrip())
    return lines


def _svg(tiling: str, owners: dict[str, dict[Box, list[int]]], columns: int, lane: int | None, head: str) -> str:
    rows = 1 + max(place[0] for key in owners["C"] for place in key)
    x, y = LEFT + K * CELL + GAP, TITLE + HEIGHT + K * HEIGHT + GAP  # of C
    origins = {"A": (LEFT, y), "B": (x, TITLE + HEIGHT), "C": (x, y)}
    heads = enumerate(head.split("; "))
    parts = [words(MARGIN, 9 + 16 * i, text, anchor="start", bold=True) for i, text in heads]
    parts += [words(x + (column + 0.5) * CELL, TITLE + HEIGHT / 2, str(column), size=9) for column in range(columns)]
    parts += [words(LEFT - 10, y + (row + 0.5) * HEIGHT, str(row), size=9) for row in range(rows)]
    parts.append(words(LEFT + K * CELL / 2, y - GAP, "A", bold=True))
    parts.append(words(x - GAP, TITLE + HEIGHT + K * HEIGHT / 2, "B", bold=True))
    parts.append(words(x - GAP, y - GAP, "C", bold=True))
    for operand, boxes in owners.items():
        for places, lanes in boxes.items():
            labels = [str(each) for each in lanes]
            if lane in lanes:
                first = lane_elements(operand, lane, tiling).index(places[0])
                labels = [f"{OPERANDS[operand]}{first + i}" for i in range(len(places))]
            parts.append(_box(places, labels, _colour(lanes, lane), origins[operand], bold=lane in lanes))
    return document(x + columns * CELL + MARGIN, y + rows * HEIGHT + MARGIN, parts)


def _colour(lanes: Sequence[int], marked: int | None) -> str:
    if marked in lanes:
        return WARNING
    return BLOCKS[QUAD_PAIR[lanes[0]]] if len(lanes) == 1 else EMPTY


def _box(places: Box, labels: Sequence[str], colour: str, origin: tuple[float, float], *, bold: bool) -> str:
    """The box of some neighbouring elements; its labels side by side, or one above the other where it is upright."""
    (row, column), (last_row, last_column) = places[0], places[-1]
    x, y = origin[0] + column * CELL, origin[1] + row * HEIGHT
    width, height = (last_column - column + 1) * CELL, (last_row - row + 1) * HEIGHT
    lines = [" ".join(labels)] if width > CELL else labels
    step = height / len(lines)
    middles = ((y + (i + 0.5) * step, text) for i, text in enumerate(lines))
    return box(x, y, width, height, colour, "#666") + "".join(
        words(x + width / 2, middle, text, size=9, bold=bold) for middle, text in middles
    )
