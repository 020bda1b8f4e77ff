"""Where a 4-bit number of a weight lies in the order in which the SM70 kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.lab.drawing import BLOCKS, EMPTY, FETCHED, WARNING, box, document, line, words
from labkit.lab.picture import SvgPicture
from labkit.quant.pack import CHUNK, GROUP_SIZES, LANE_COLUMN, NIBBLE_INPUT, PER_WORD, TILE

CELL, ROW, GAP, LEFT, MARGIN = 22, 22, 34, 120, 8  # pixels; GAP between the strips
WORDS = CHUNK // PER_WORD  # that a lane loads at once
WIDTH = CELL * TILE  # of every strip


@dataclass(frozen=True)
class NibblePlace:
    """A place in ``PackedInt4.data[tile, group]``.

    lane: who loads it. chunk: which of the group's loads. word: counted from the start of the group, the scales'
    words included. nibble: of that word, 0 the lowest.
    """

    tile: int
    group: int
    lane: int
    chunk: int
    word: int
    nibble: int

    @property
    def first_word(self) -> int:
        """The first of the lane's four words of this chunk."""
        return TILE + TILE * WORDS * self.chunk + WORDS * self.lane


def nibble_place(output: int, k: int, group_size: int) -> NibblePlace:
    """Where ``pack`` puts the number of output ``output`` and input ``k``, both counted from 0.

    Raises ValueError for a group size that the kernels do not take, and for numbers below 0.
    """
    if group_size not in GROUP_SIZES:
        raise ValueError(f"groups have {', '.join(map(str, GROUP_SIZES))} inputs, not {group_size}")
    if min(output, k) < 0:
        raise ValueError(f"outputs and inputs are counted from 0, not {min(output, k)}")
    tile, column = divmod(output, TILE)
    group, inside = divmod(k, group_size)
    chunk, of_chunk = divmod(inside, CHUNK)
    of_lane, of_word = divmod(of_chunk, PER_WORD)
    lane = LANE_COLUMN.index(column)
    word = TILE + TILE * WORDS * chunk + WORDS * lane + of_lane
    return NibblePlace(tile, group, lane, chunk, word, NIBBLE_INPUT.index(of_word))


def nibble_map(output: int, k: int, group_size: int = 128, *, whole_lane: bool = False) -> SvgPicture:
    """Draw the way from an element of a weight [N, K] to its four bits.

    From top to bottom: the 32 outputs of the tile, each with the lane that has it; one group of the tile in memory;
    one chunk of that, 16 bytes a lane; the 32 nibbles that the lane loads. The element is marked; whole_lane: all that
    the lane loads with it as well. Raises ValueError as ``nibble_place``.
    """
    place = nibble_place(output, k, group_size)
    first_input = k - k % CHUNK
    head = f"output {output}, input {k}, in groups of {group_size}"
    facts = (
        f"tile {place.tile}, group {place.group}: lane {place.lane}, chunk {place.chunk}, word {place.word},"
        f" bits {4 * place.nibble} to {4 * place.nibble + 3}"
    )
    alt = f"Where a nibble lies. {head[0].upper()}{head[1:]}: {facts}."
    text = "\n".join([f"{head}: {facts}", *_text(place, output, first_input)])
    return SvgPicture(
        svg=_svg(place, f"{head}: {facts}", output, first_input, group_size, whole_lane), alt=alt, text=text
    )


def _inputs_of_words(first_input: int) -> list[list[int]]:
    """The inputs in each of the lane's words, from the highest bits to the lowest."""
    return [[first_input + PER_WORD * word + i for i in reversed(NIBBLE_INPUT)] for word in range(WORDS)]


def _text(place: NibblePlace, output: int, first_input: int) -> list[str]:
    scales = f"word {place.lane}: scale and zero point (or bias) of output {output}"
    rows = [scales, "inputs in the lane's words, highest bits first:"]
    for word, inputs in enumerate(_inputs_of_words(first_input), place.first_word):
        marks = (
            f"[{k}]" if (word, PER_WORD - 1 - i) == (place.word, place.nibble) else str(k) for i, k in enumerate(inputs)
        )
        rows.append(f"word {word:<5}" + "".join(f"{mark:>7}" for mark in marks))
    return rows


# The drawing: four strips of one width, each a part of the one above it


def _svg(place: NibblePlace, head: str, output: int, first_input: int, group_size: int, whole_lane: bool) -> str:
    tops = [2 * ROW + i * (ROW + GAP) for i in range(4)]
    chunks = group_size // CHUNK
    block = WIDTH / (1 + 4 * chunks)  # the scales take a quarter of a chunk's room
    chunk_x, lane_x = LEFT + block * (1 + 4 * place.chunk), LEFT + CELL * place.lane
    parts = [words(MARGIN, ROW / 2 + 4, head, anchor="start", bold=True)]
    parts += _zoom(tops[1], chunk_x, 4 * block) + _zoom(tops[2], lane_x, CELL)
    parts += _outputs(tops[0], place, output) + _group(tops[1], place, chunks, block)
    parts += _chunk(tops[2], place) + _nibbles(tops[3], place, first_input, whole_lane)
    return document(LEFT + WIDTH + MARGIN, tops[3] + 2 * ROW + MARGIN, parts)


def _zoom(top: float, x: float, width: float) -> list[str]:
    """Two lines from a box of a strip to the ends of the strip below."""
    below = top + ROW + GAP
    return [line(x, top + ROW, LEFT, below, "#888"), line(x + width, top + ROW, LEFT + WIDTH, below, "#888")]


def _name(top: float, first: str, second: str) -> list[str]:
    upper = words(LEFT - 8, top + ROW / 2 - 7, first, anchor="end", size=10, bold=True)
    return [upper, words(LEFT - 8, top + ROW / 2 + 7, second, anchor="end", size=10)]


def _quad_pair(lane: int) -> str:
    return BLOCKS[lane // 4 % 4]


def _outputs(top: float, place: NibblePlace, output: int) -> list[str]:
    parts = _name(top, "outputs of the tile", "below: lane")
    for column in range(TILE):
        lane, x = LANE_COLUMN.index(column), LEFT + CELL * column
        mine = lane == place.lane
        parts.append(box(x, top, CELL, ROW, WARNING if mine else _quad_pair(lane), "#666"))
        parts.append(words(x + CELL / 2, top + ROW / 2, str(output - output % TILE + column), size=9, bold=mine))
        parts.append(words(x + CELL / 2, top + ROW + 8, str(lane), size=9, bold=mine))
    return parts


def _group(top: float, place: NibblePlace, chunks: int, block: float) -> list[str]:
    parts = [*_name(top, f"data[{place.tile}, {place.group}]", "in memory"), box(LEFT, top, block, ROW, EMPTY, "#666")]
    parts.append(words(LEFT + block / 2, top + ROW / 2, "scales", size=9))
    for chunk in range(chunks):
        x, mine = LEFT + block * (1 + 4 * chunk), chunk == place.chunk
        first = TILE + TILE * WORDS * chunk
        label = f"chunk {chunk}: words {first} to {first + TILE * WORDS - 1}"
        parts.append(box(x, top, 4 * block, ROW, WARNING if mine else EMPTY, "#666"))
        parts.append(words(x + 2 * block, top + ROW / 2, label, size=9, bold=mine))
    return parts


def _chunk(top: float, place: NibblePlace) -> list[str]:
    parts = _name(top, f"chunk {place.chunk}", "16 bytes a lane")
    for lane in range(TILE):
        x, mine = LEFT + CELL * lane, lane == place.lane
        parts.append(box(x, top, CELL, ROW, WARNING if mine else _quad_pair(lane), "#666"))
        parts.append(words(x + CELL / 2, top + ROW / 2, str(lane), size=9, bold=mine))
    return parts


def _nibbles(top: float, place: NibblePlace, first_input: int, whole_lane: bool) -> list[str]:
    parts = _name(top, f"lane {place.lane}: inputs", "high bits left")
    for number, inputs in enumerate(_inputs_of_words(first_input)):
        word, start = place.first_word + number, LEFT + CELL * PER_WORD * number
        parts.append(words(start + CELL * PER_WORD / 2, top + 1.4 * ROW, f"word {word}", size=9))
        for i, k in enumerate(inputs):
            mine = (word, PER_WORD - 1 - i) == (place.word, place.nibble)
            rest = FETCHED if whole_lane else (EMPTY if number % 2 else "white")
            parts.append(box(start + CELL * i, top, CELL, ROW, WARNING if mine else rest, "#666"))
            parts.append(words(start + CELL * (i + 0.5), top + ROW / 2, str(k), size=9, bold=mine))
    return parts
