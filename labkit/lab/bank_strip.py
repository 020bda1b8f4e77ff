"""What one warp asks of shared memory: its lanes over the 32 banks, one row for each pass that the access takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.lab.drawing import EMPTY, USED, box, document, words
from labkit.lab.picture import SvgPicture

BANKS, WORD, WARP = 32, 4, 32  # a bank delivers one word of 4 bytes in a pass
CELL, ROW, LEFT, MARGIN = 18, 16, 64, 8  # pixels
MAX_ROWS = 8  # of the plain text

Pass = dict[int, list[int]]  # bank -> the lanes that it serves


def bank_passes(offsets: Any, nbytes: int = 4, lanes: Sequence[int] | None = None) -> list[Pass]:
    """Which lanes each bank serves, pass after pass.

    offsets: int [lanes], bytes from the start of shared memory; nbytes of one lane: 4 or less, 8 or 16. Lanes that
    want the same word share it. 8-byte accesses go by half warps, 16-byte ones by quarters (CUDA C++ Programming
    Guide, compute capabilities 5.x to 7.x, shared memory; the split of wide accesses as measured on Volta).
    """
    places = [int(offset) for offset in np.asarray(offsets).ravel()]
    numbers = list(range(len(places))) if lanes is None else list(lanes)
    group = WARP // max(1, nbytes // WORD)
    members: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for lane, place in zip(numbers, places, strict=True):
        members[lane // group].append((lane, place))
    return [one for key in sorted(members) for one in _passes_of_group(members[key], nbytes)]


def _passes_of_group(members: Sequence[tuple[int, int]], nbytes: int) -> list[Pass]:
    wanted: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)  # bank -> word -> lanes
    for lane, place in members:
        for word in range(place // WORD, (place + nbytes - 1) // WORD + 1):
            wanted[word % BANKS].setdefault(word, []).append(lane)
    count = max((len(queue) for queue in wanted.values()), default=0)
    queues = {bank: list(queue.values()) for bank, queue in wanted.items()}
    return [{bank: queue[i] for bank, queue in queues.items() if i < len(queue)} for i in range(count)]


def bank_strip(offsets: Any, nbytes: int = 4, lanes: Sequence[int] | None = None, title: str = "") -> SvgPicture:
    """Draw one shared-memory access of one warp; arguments as of ``bank_passes``."""
    passes = bank_passes(offsets, nbytes, lanes)
    busy = sum(len(one) for one in passes) / (BANKS * len(passes)) if passes else 0.0
    facts = f"{len(passes)} pass{'' if len(passes) == 1 else 'es'}, banks busy {busy:.0%} of the time"
    head = f"{title}: {facts}" if title else facts
    text = "\n".join([head, *_text(passes)])
    return SvgPicture(svg=_svg(passes, head), alt=f"Shared-memory banks. {head}.", text=text)


def _label(lanes: Sequence[int]) -> str:
    return str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}"


def _text(passes: Sequence[Pass]) -> list[str]:
    rows = ["bank    " + "".join(f"{bank:<4}" for bank in range(BANKS)).rstrip()]
    rows += [_text_row(number, served) for number, served in enumerate(passes[:MAX_ROWS], 1)]
    return rows + ([f"... and {len(passes) - MAX_ROWS} more passes"] if len(passes) > MAX_ROWS else [])


def _text_row(number: int, served: Pass) -> str:
    cells = (_label(served[bank]) if bank in served else "." for bank in range(BANKS))
    return f"pass {number:<3}" + "".join(f"{cell:<4}" for cell in cells).rstrip()


def _svg(passes: Sequence[Pass], head: str) -> str:
    parts = [words(MARGIN, ROW / 2 + 4, head, anchor="start", bold=True)]
    top = 2 * ROW
    parts.append(words(LEFT - 6, top, "bank", anchor="end"))
    parts += [words(LEFT + (bank + 0.5) * CELL, top, str(bank), size=9) for bank in range(BANKS)]
    for number, served in enumerate(passes, 1):
        y = top + ROW * number - 4
        parts.append(words(LEFT - 6, y + ROW / 2, f"pass {number}", anchor="end", size=10))
        parts.append(box(LEFT, y, BANKS * CELL, ROW, EMPTY))
        for bank, lanes in sorted(served.items()):
            x = LEFT + bank * CELL
            parts.append(box(x, y, CELL, ROW, USED) + words(x + CELL / 2, y + ROW / 2, _label(lanes), size=9))
    return document(LEFT + BANKS * CELL + MARGIN, top + ROW * (len(passes) + 1) + MARGIN, parts)
