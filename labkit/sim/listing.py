"""A CUDA source beside the PTX that the compiler has made of it, with a mark where threads stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from labkit.sim.program import Site
from labkit.sim.source import Program

SOURCE_WIDTH = 64  # columns of the CUDA side; longer lines are cut, since the source itself is at hand


def side_by_side(program: Program, standing: Sequence[tuple[Site, int]] = ()) -> str:
    """Every line of the source with its instructions to the right.

    standing: instructions at which threads are about to run, or wait, and how many threads.
    """
    counts: dict[int, int] = {}
    for site, threads in standing:
        counts[site.index] = counts.get(site.index, 0) + threads
    by_line: dict[int, list[Site]] = {}
    for site in program.kernel.sites:
        by_line.setdefault(site.line if site.file == program.file else 0, []).append(site)
    rows = [row for number, text in _lines(program) for row in _rows(number, text, by_line.get(number, []), counts)]
    return "\n".join(row.rstrip() for row in rows)


def _lines(program: Program) -> Iterator[tuple[int, str]]:
    yield from enumerate(program.text.splitlines(), 1)
    if any(site.file != program.file for site in program.kernel.sites):
        yield 0, "(headers, and instructions of no line)"


def _rows(number: int, text: str, sites: list[Site], counts: dict[int, int]) -> Iterator[str]:
    """The rows of one source line: as many as it has instructions, and one at least."""
    here = any(site.index in counts for site in sites)
    label = f"{'>' if here else ' '}{number or '':4} | {text}"[:SOURCE_WIDTH]
    for left, site in zip_longest([label], sites, fillvalue=None):
        yield f"{left or '':{SOURCE_WIDTH}} | {_instruction(site, counts)}"


def _instruction(site: Site | None, counts: dict[int, int]) -> str:
    if site is None:
        return ""
    threads = counts.get(site.index)
    return f"> {site.text}    [{threads} threads]" if threads else f"  {site.text}"
