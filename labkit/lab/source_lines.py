"""A stretch of a rung's real source, where a chapter wants to show less than a function, or one inside a struct."""

from __future__ import annotations

from labkit.device.sources import read_rung


def source_lines(op: str, rung: str, first: str, last: str) -> str:
    """The lines from the one that contains ``first`` to the next, at the earliest the same, that contains ``last``.

    Looked for in the rung's file, then in its headers. What all lines but the compiler's (#pragma) are indented by is
    taken off. Raises KeyError if no file has such lines.
    """
    source = read_rung(op, rung)
    for text in (source.text, *source.headers.values()):
        lines = text.splitlines()
        start = next((i for i, line in enumerate(lines) if first in line), len(lines))
        end = next((i for i in range(start, len(lines)) if last in lines[i]), None)
        if end is not None:
            return "\n".join(_outdented(lines[start : end + 1]))
    raise KeyError(f"no lines from {first!r} to {last!r} in {source.name} and its headers")


def _outdented(lines: list[str]) -> list[str]:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line and line[0] != "#"), default=0)
    return [line if line.startswith("#") else line[margin:] for line in lines]
