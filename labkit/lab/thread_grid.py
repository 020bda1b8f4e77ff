"""Which thread of a launch wrote which element of an array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkit.lab.drawing import BLOCKS, EMPTY, WARNING, box, counted, document, line, words
from labkit.lab.picture import SvgPicture
from labkit.sim.trace import Trace

CELL, ROW, GAP, FALL, LEFT, MARGIN = 24, 24, 10, 70, 76, 8  # pixels; GAP between blocks, FALL from thread to element
OUTSIDE = 8  # elements before and beyond the array that are drawn

Writes = Mapping[int, Sequence[int]]  # element -> the threads that wrote it, counted over all blocks


def writes_to(trace: Trace, tensor: Any, threads: int) -> list[tuple[int, int]]:
    """Pairs (thread, element) of all stores of a run that fell into a tensor, for ``thread_grid``.

    threads: of a block. Threads are counted over all blocks; elements in the order of memory.
    """
    size, count = tensor.element_size(), tensor.numel()
    pairs = []
    for access in trace.at(space="global", kind="store"):
        for thread, offset in zip(access.threads, access.offsets(tensor), strict=True):
            if 0 <= offset < size * count:
                pairs += [(access.block * threads + thread, offset // size + i) for i in range(access.nbytes // size)]
    return pairs


def thread_grid(blocks: int, threads: int, elements: int, writes: Iterable[tuple[int, int]]) -> SvgPicture:
    """Draw a one-dimensional launch and what it wrote.

    blocks, threads: of the launch and of each block. elements: of the array. writes: pairs (thread, element), threads
    counted over all blocks; an element below 0 or beyond the end is a write outside the array.
    """
    pairs = sorted(set(writes))
    owners: defaultdict[int, list[int]] = defaultdict(list)
    for thread, element in pairs:
        owners[element].append(thread)
    facts = _facts(blocks * threads, elements, owners)
    text = "\n".join([f"{counted(blocks, 'block')} of {counted(threads, 'thread')}: {facts}", *_text(threads, owners)])
    alt = f"{blocks} blocks of {threads} threads above an array of {elements} elements. {facts}."
    return SvgPicture(svg=_svg(blocks, threads, elements, owners), alt=alt, text=text)


def _facts(threads: int, elements: int, owners: Writes) -> str:
    inside = [element for element in owners if 0 <= element < elements]
    outside = sorted(set(owners) - set(inside))
    busy = {thread for writers in owners.values() for thread in writers}
    parts = [f"{len(inside)} of {counted(elements, 'element')} written", f"{threads - len(busy)} threads idle"]
    if crowded := sum(len(owners[element]) > 1 for element in inside):
        parts.append(f"{crowded} written more than once")
    if outside:
        parts.append(f"{counted(len(outside), 'write')} outside the array, at {', '.join(map(str, outside))}")
    return "; ".join(parts)


def _name(thread: int, threads: int) -> str:
    return f"{thread // threads}.{thread % threads}"


def _text(threads: int, owners: Writes) -> list[str]:
    """One row for each block: its threads, each with the elements that it wrote."""
    rows: defaultdict[int, list[str]] = defaultdict(list)
    for thread, element in sorted((thread, element) for element, all_ in owners.items() for thread in all_):
        rows[thread // threads].append(f"{_name(thread, threads)}->{element}")
    return [f"block {block}: {' '.join(arrows)}" for block, arrows in rows.items()]


def _thread_x(thread: int, threads: int) -> float:
    return LEFT + thread * CELL + thread // threads * GAP


def _svg(blocks: int, threads: int, elements: int, owners: Writes) -> str:
    near = {
        e: all_ for e, all_ in owners.items() if -OUTSIDE <= e < elements + OUTSIDE
    }  # farther ones are only counted
    first, last = min([0, *near]), max([elements - 1, *near])
    top, bottom = 2 * ROW, 3 * ROW + FALL
    busy = {thread for writers in owners.values() for thread in writers}
    place = {e: LEFT + (e - first) * CELL for e in range(first, last + 1)}
    parts = [_arrow(top + ROW, bottom, _thread_x(t, threads), place[e]) for e, all_ in near.items() for t in all_]
    parts += _threads(blocks, threads, busy, top)
    parts += [_element(x, bottom, e, elements, near.get(e, ()), threads) for e, x in place.items()]
    parts.append(words(LEFT - 8, top + ROW / 2, "thread", anchor="end", bold=True))
    parts.append(words(LEFT - 8, bottom + ROW / 2, "element", anchor="end", bold=True))
    width = max(_thread_x(blocks * threads, threads), place[last] + CELL) + MARGIN
    return document(width, bottom + 2.2 * ROW, parts)


def _threads(blocks: int, threads: int, busy: set[int], top: float) -> list[str]:
    parts = []
    for block in range(blocks):
        x = _thread_x(block * threads, threads)
        parts.append(words(x + threads * CELL / 2, top - ROW / 2, f"block {block}", bold=True))
        for i in range(threads):
            colour = BLOCKS[block % len(BLOCKS)] if block * threads + i in busy else EMPTY
            parts.append(box(x + i * CELL, top, CELL, ROW, colour, "#666"))
            parts.append(words(x + (i + 0.5) * CELL, top + ROW / 2, str(i), size=10))
    return parts


def _arrow(top: float, bottom: float, thread_x: float, element_x: float) -> str:
    return line(thread_x + CELL / 2, top, element_x + CELL / 2, bottom, "#888")


def _element(x: float, y: float, element: int, elements: int, writers: Sequence[int], threads: int) -> str:
    if not 0 <= element < elements:
        return box(x, y, CELL, ROW, WARNING, "#666") + words(x + CELL / 2, y + ROW / 2, "!", bold=True)
    colour = BLOCKS[writers[0] // threads % len(BLOCKS)] if writers else "white"
    label = words(x + CELL / 2, y + ROW / 2, str(element), size=10)
    double = words(x + CELL / 2, y + 1.5 * ROW, f"×{len(writers)}", size=10) if len(writers) > 1 else ""
    return box(x, y, CELL, ROW, colour, "#666") + label + double
