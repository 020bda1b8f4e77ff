"""Lines as a stepper names them: 7 in the source itself, "tile.cuh:5" in a header that it includes."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.sim.source import Program

Line = int | str


def main_file(program: Program) -> str:
    """The name that the line table has for the source; of PTX, the file that most of its instructions come from."""
    files = [site.file for site in program.kernel.sites]
    return program.file if program.file in files else max(files, key=files.count, default="")


def in_order(line: Line) -> tuple[str, int]:
    """A sort key: the source's own lines first, then headers by name."""
    if isinstance(line, int):
        return "", line
    file, _, number = line.rpartition(":")
    return file, int(number)


def ranges(lines: Iterable[Line]) -> str:
    """1, 2, 3, 7, "x.cuh:5" -> "1-3, 7, x.cuh:5"."""
    known = sorted(lines, key=in_order)
    pieces: list[list[int]] = []
    for line in (line for line in known if isinstance(line, int)):
        if pieces and line == pieces[-1][-1] + 1:
            pieces[-1].append(line)
        else:
            pieces.append([line])
    own = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces]
    return ", ".join([*own, *(line for line in known if isinstance(line, str))])
