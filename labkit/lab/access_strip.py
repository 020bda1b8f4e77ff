"""What one warp asks of global memory: its 32 lanes laid over 128-byte lines and their 32-byte sectors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.lab.drawing import EMPTY, FETCHED, USED, box, counted, document, percent, words
from labkit.lab.picture import SvgPicture

SECTOR, LINE, WORD = 32, 128, 4  # bytes
CELL, ROW, LEFT, MARGIN = 18, 24, 64, 8  # pixels: a word, a line of memory, the room for its address, the edge
MAX_LINES = 8  # of memory that are drawn; the rest is counted


@dataclass(frozen=True)
class Request:
    """One load or store instruction of one warp.

    lanes: who takes part. offsets: where each of them begins, in bytes from a point that is a multiple of 128.
    nbytes: how many bytes each lane moves.
    """

    lanes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int

    @property
    def sectors(self) -> int:
        """32-byte sectors that the memory has to move."""
        return len({byte // SECTOR for byte in self._bytes})

    @property
    def wanted(self) -> int:
        """Different bytes that the lanes asked for."""
        return len(self._bytes)

    @property
    def efficiency(self) -> float:
        """The share of the moved bytes that somebody wanted."""
        return self.wanted / (self.sectors * SECTOR) if self.sectors else 1.0

    @property
    def _bytes(self) -> set[int]:
        return {offset + i for offset in self.offsets for i in range(self.nbytes)}

    def __str__(self) -> str:
        moved = f"{counted(self.sectors, 'sector')} of {SECTOR} bytes"
        wanting = f"{counted(len(self.lanes), 'lane')} want{'s' if len(self.lanes) == 1 else ''}"
        return f"{wanting} {counted(self.wanted, 'byte')}: {moved}, {percent(self.efficiency)} used"


def access_strip(offsets: Any, nbytes: int, lanes: Sequence[int] | None = None, title: str = "") -> SvgPicture:
    """Draw one request.

    offsets: int [lanes], where each lane begins, in bytes from the start of the array (which a GPU places on a
    multiple of 256). nbytes: 1, 2, 4, 8 or 16, of one lane. lanes: their numbers, 0 to 31; counted up where not given.
    Raises ValueError if the lists differ in length.
    """
    places = [int(offset) for offset in np.asarray(offsets).ravel()]
    numbers = list(range(len(places))) if lanes is None else [int(lane) for lane in lanes]
    if len(numbers) != len(places):
        raise ValueError(f"{len(numbers)} lanes, but {len(places)} offsets")
    request = Request(tuple(numbers), tuple(places), nbytes)
    head = f"{title}: {request}" if title else str(request)
    alt = f"Memory strip. {head}. {_lines_in_words(request)}"
    return SvgPicture(svg=_svg(request, head), alt=alt, text="\n".join([head, *_text_rows(request)]))


def _memory_lines(request: Request) -> list[int]:
    return sorted({offset // LINE for offset in request.offsets})


def _lines_in_words(request: Request) -> str:
    lines = _memory_lines(request)
    return f"The lanes reach into {counted(len(lines), 'line')} of {LINE} bytes."


def _holders(request: Request) -> dict[int, list[int]]:
    """Offset -> the lanes that begin there."""
    holders = defaultdict(list)
    for lane, offset in zip(request.lanes, request.offsets, strict=True):
        holders[offset].append(lane)
    return holders


def _label(lanes: Sequence[int]) -> str:
    return str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}"


# In plain text: a row for each line of memory, a cell for each word


def _text_rows(request: Request) -> list[str]:
    lines = _memory_lines(request)
    rows = [_text_row(request, memory_line) for memory_line in lines[:MAX_LINES]]
    return rows + ([_rest(lines)] if len(lines) > MAX_LINES else []) + [LEGEND]


LEGEND = "a number: the lane (+: more than one) that uses the word; .: moved but not used; blank: not moved"


def _rest(lines: Sequence[int]) -> str:
    return f"... and {counted(len(lines) - MAX_LINES, 'more line')}"


def _text_row(request: Request, memory_line: int) -> str:
    users: dict[int, list[int]] = defaultdict(list)
    for offset, lanes in _holders(request).items():
        for word in range(offset // WORD, (offset + request.nbytes - 1) // WORD + 1):
            users[word] += lanes
    cells = [users.get(memory_line * LINE // WORD + i, []) for i in range(LINE // WORD)]
    sectors = [cells[i : i + SECTOR // WORD] for i in range(0, len(cells), SECTOR // WORD)]
    return f"{memory_line * LINE:+6} |" + "|".join(_text_sector(sector) for sector in sectors) + "|"


def _text_sector(words_of_sector: Sequence[list[int]]) -> str:
    if not any(words_of_sector):
        return "   " * len(words_of_sector)
    return "".join(f"{_text_cell(sorted(lanes)):3}" for lanes in words_of_sector)


def _text_cell(lanes: Sequence[int]) -> str:
    return "." if not lanes else f"{lanes[0]}{'+' if len(lanes) > 1 else ''}"


# As SVG


def _svg(request: Request, head: str) -> str:
    lines = _memory_lines(request)
    shown = lines[:MAX_LINES]
    parts = [words(MARGIN, ROW / 2, head, anchor="start", bold=True)]
    for y, memory_line in enumerate(shown, 1):
        parts.append(_svg_row(request, memory_line, y * (ROW + 4)))
    y = (len(shown) + 1) * (ROW + 4)
    if len(lines) > MAX_LINES:
        parts.append(words(LEFT, y + ROW / 2, _rest(lines), anchor="start"))
        y += ROW
    parts.append(_legend(y + 4))
    return document(LEFT + LINE // WORD * CELL + MARGIN, y + ROW + MARGIN, parts)


def _svg_row(request: Request, memory_line: int, y: float) -> str:
    start = memory_line * LINE
    touched = {offset // SECTOR for offset in request.offsets}
    parts = [words(LEFT - 6, y + ROW / 2, f"{start:+}", anchor="end")]
    for sector in range(start // SECTOR, (start + LINE) // SECTOR):
        x = LEFT + (sector * SECTOR - start) / WORD * CELL
        parts.append(box(x, y, SECTOR / WORD * CELL, ROW, FETCHED if sector in touched else EMPTY, "#666"))
    for offset, lanes in _holders(request).items():
        if offset // LINE == memory_line:
            parts.append(_svg_lane(LEFT + (offset - start) / WORD * CELL, y, request.nbytes, _label(lanes)))
    return "".join(parts)


def _svg_lane(x: float, y: float, nbytes: int, label: str) -> str:
    width = nbytes / WORD * CELL
    size = 10 if width >= CELL else 7
    cell = box(x + 0.5, y + 4, width - 1, ROW - 8, USED)
    return cell + words(x + width / 2, y + ROW / 2, label, size=size)


def _legend(y: float) -> str:
    entries = ((USED, "a lane's bytes"), (FETCHED, "moved, but not used"), (EMPTY, "not moved"))
    parts = []
    for i, (colour, meaning) in enumerate(entries):
        x = LEFT + 170 * i
        parts.append(box(x, y, CELL, ROW - 8, colour, "#666") + words(x + CELL + 6, y + 8, meaning, anchor="start"))
    return "".join(parts)
