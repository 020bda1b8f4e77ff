"""The way of attention's weights between two products: which a lane has as results, and which it wants as operands."""

from __future__ import annotations

from labkit.lab.drawing import EMPTY, FETCHED, USED, WARNING, box, document, words
from labkit.lab.fragment_map import TILINGS, lane_elements
from labkit.lab.picture import SvgPicture

ROWS, TOKENS = 8, 64  # of the queries in one mma; of a page
CELL, HEIGHT, LEFT, TOP, MARGIN = 11, 16, 44, 52, 8  # pixels
BOTH, HAS, WANTS, NEITHER = "#", "o", "+", "."
MEANING = {BOTH: "has and wants", HAS: "has, others want it", WANTS: "wants, others have it"}
COLOURS = {BOTH: USED, HAS: WARNING, WANTS: FETCHED, NEITHER: EMPTY}

Place = tuple[int, int]  # row, token


def weights_of(lane: int) -> set[Place]:
    """(row, token) of the scores, and so of the weights, that a lane has when q k^T of a page is done.

    Two mma stand side by side, 32 columns each. The kernels read keys in such an order that the eight columns of a
    quad-pair, (0 1 4 5) and (2 3 6 7), are tokens 0 to 3 and 4 to 7 of eight neighbours: what a lane has in a row then
    are four neighbours. Raises ValueError for a lane that a warp does not have.
    """
    found = set()
    for row, column in lane_elements("C", lane, "1x4"):
        quad_pair, within = divmod(column, 8)
        token = (within & 1) + (within & 4) // 2 + (within & 2) * 2
        found |= {(row, 16 * quad_pair + 8 * product + token) for product in range(2)}
    return found


def operands_of(lane: int) -> set[Place]:
    """(row, token) of the weights that a lane brings to weights times values: its row of A, all 64 tokens of it.

    Raises ValueError for a lane that a warp does not have.
    """
    row = lane_elements("A", lane, "1x4")[0][0]
    return {(row, token) for token in range(TOKENS)}


def most_that_stay(tiling: str = "2x2") -> tuple[int, int]:
    """(results of one mma that a lane could use itself as its row of A, all results), of a warp.

    A lane is granted a whole row of its quad-pair's eight columns: no order of columns could keep more.
    """
    stay = 0
    for lane in range(32):
        row = lane_elements("A", lane, tiling)[0][0]
        stay += sum(place[0] == row for place in lane_elements("C", lane, tiling))
    return stay, 64 * len(TILINGS[tiling])


def weight_travel(lane: int) -> SvgPicture:
    """Draw the weights of eight rows and a page of 64 tokens with what one lane has and wants.

    Raises ValueError for a lane that a warp does not have.
    """
    has, wants = weights_of(lane), operands_of(lane)
    signs = [[_sign((row, token), has, wants) for token in range(TOKENS)] for row in range(ROWS)]
    head = (
        f"lane {lane} has {len(has)} of {ROWS * TOKENS} weights and wants {len(wants)};"
        f" {len(has & wants)} of them are its own"
    )
    legend = "  ".join(f"{sign} {meaning}" for sign, meaning in MEANING.items())
    lines = [f"row {row}  {''.join(line)}" for row, line in enumerate(signs)]
    text = "\n".join([head, legend, "token by token:", *lines])
    return SvgPicture(_svg(signs, head), f"Weights of eight rows and 64 tokens in a warp. {head.capitalize()}.", text)


def _sign(place: Place, has: set[Place], wants: set[Place]) -> str:
    if place in has:
        return BOTH if place in wants else HAS
    return WANTS if place in wants else NEITHER


def _svg(signs: list[list[str]], head: str) -> str:
    parts = [words(MARGIN, 12, head, anchor="start", bold=True)]
    parts += [words(LEFT + token * CELL, TOP - 10, str(token), anchor="start", size=9) for token in range(0, TOKENS, 8)]
    parts.append(words(LEFT - 6, TOP - 10, "token", anchor="end", size=9))
    for row, line in enumerate(signs):
        y = TOP + row * HEIGHT
        parts.append(words(LEFT - 6, y + HEIGHT / 2, f"row {row}", anchor="end", size=9))
        parts.append(box(LEFT, y, TOKENS * CELL, HEIGHT, COLOURS[NEITHER], "#666"))
        marked = ((token, sign) for token, sign in enumerate(line) if sign != NEITHER)
        parts += [box(LEFT + token * CELL, y, CELL, HEIGHT, COLOURS[sign], "#666") for token, sign in marked]
    below = TOP + ROWS * HEIGHT + 12
    for i, (sign, meaning) in enumerate(MEANING.items()):
        parts.append(box(LEFT + 190 * i, below, 12, 12, COLOURS[sign], "#666"))
        parts.append(words(LEFT + 190 * i + 18, below + 6, meaning, anchor="start"))
    return document(LEFT + TOKENS * CELL + MARGIN, below + 12 + MARGIN, parts)
