"""A CUDA source with what each of its lines cost, beside it."""

from __future__ import annotations

from collections.abc import Collection

from labkit.sim.coalescing import LANES
from labkit.sim.counters import Counters
from labkit.sim.counts import SiteCounts

COLUMNS = ("warp instr", "active", "sect/req", "useful", "conflicts")
WIDTHS = tuple(len(name) for name in COLUMNS)
LEGEND = (
    "warp instr: PTX instructions times warps; active: lanes that take part, where not all 32; sect/req: 32-byte "
    "sectors\nper global request; useful: bytes asked for, of the bytes moved; conflicts: cycles lost to bank conflicts"
)
MARKED = "\n!: a finding names this line"


def annotate(source: str, counters: Counters, file: str | None = None, marked: Collection[int] = ()) -> str:
    """Every line of a CUDA source with its counts.

    Args:
        source: the text that was compiled.
        counters: of a launch.
        file: the source's name in the line table; by default the file in which most of the work was done.
        marked: numbers of lines with findings; they get an exclamation mark.
    """
    lines = counters.by_line()
    name = _main_file(lines) if file is None else file
    body = [
        _line(number, text, lines.get((name, number)), number in marked)
        for number, text in enumerate(source.splitlines(), 1)
    ]
    return "\n".join([f"{_columns(COLUMNS)}  line", *body, "", LEGEND + (MARKED if marked else "")])


def _main_file(lines: dict[tuple[str, int], SiteCounts]) -> str:
    work: dict[str, int] = {}
    for (file, _), counts in lines.items():
        work[file] = work.get(file, 0) + counts.warp_instructions
    return max(work, key=lambda file: work[file], default="")


def _line(number: int, text: str, counts: SiteCounts | None, marked: bool) -> str:
    cells = _cells(counts) if counts is not None and counts.warp_instructions else ("",) * len(COLUMNS)
    return f"{_columns(cells)} {'!' if marked else ' '}{number:4} | {text}".rstrip()


def _cells(counts: SiteCounts) -> tuple[str, ...]:
    active = counts.thread_instructions / counts.warp_instructions
    parts = (counts.global_load, counts.global_store, counts.global_atomic)
    requests, sectors = sum(p.requests for p in parts), sum(p.sectors for p in parts)
    useful = sum(p.useful_bytes for p in parts)
    shared = (counts.shared_load, counts.shared_store, counts.shared_atomic)
    return (
        f"{counts.warp_instructions:,}",
        f"{active:.0f}" if round(active) < LANES else "",
        f"{sectors / requests:.1f}" if requests else "",
        f"{useful / (32 * sectors):.0%}" if sectors else "",
        f"{sum(p.conflicts for p in shared):,}" if any(p.requests for p in shared) else "",
    )


def _columns(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
