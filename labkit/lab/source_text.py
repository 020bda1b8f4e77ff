"""Pieces of the real sources, so that a chapter shows what runs and never a copy of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import getsource
from typing import Any

from labkit.device.sources import read_rung


def idea(op: str, rung: str) -> str:
    """The first two lines of a rung: its idea, and the cost that it removes."""
    first, second = read_rung(op, rung).text.splitlines()[:2]
    return f"{first.removeprefix('// ')}\n  {second.removeprefix('// ')}"


def texts_of(op: str, rung: str) -> list[str]:
    """The rung's file, then the headers that it includes."""
    source = read_rung(op, rung)
    return [source.text, *source.headers.values()]


def function_text(function: str | Callable[..., Any], op: str = "", rung: str = "") -> str:
    """The text of a Python function, or of a CUDA function by its name: from the rung's file or a header of it.

    Raises KeyError if no file of the rung defines it.
    """
    if not isinstance(function, str):
        return getsource(function).rstrip()
    for text in texts_of(op, rung):
        if found := _definition(function, text):
            return found
    raise KeyError(f"no function {function} in {op}/{rung} and its headers")


def _definition(name: str, text: str) -> str | None:
    """From the line with the name (and a line before it that begins with template or extern) to the closing brace.

    Definitions and their braces stand at the left edge, calls do not; a short one ends on the line that it begins on.
    """
    head = rf"^(?:(?:template|extern)[^\n]*\n\s*|(?=\S))[^\n/#]*\b{re.escape(name)}\([^;{{}}]*{{"
    found = re.search(head + r"(?:[^\n]*}$|[\s\S]*?^})", text, re.MULTILINE)
    return found.group() if found else None


def source_lines(op: str, rung: str, first: str, last: str) -> str:
    """From the line of a rung that contains ``first`` to the next, at the earliest the same, that contains ``last``.

    Looked for in the rung's file, then in its headers. What all lines but the compiler's (#pragma) are indented by is
    taken off. Raises KeyError if no file has such lines.
    """
    for text in texts_of(op, rung):
        lines = text.splitlines()
        start = next((i for i, line in enumerate(lines) if first in line), len(lines))
        end = next((i for i in range(start, len(lines)) if last in lines[i]), None)
        if end is not None:
            return "\n".join(_outdented(lines[start : end + 1]))
    raise KeyError(f"no lines from {first!r} to {last!r} in {op}/{rung} and its headers")


def _outdented(lines: list[str]) -> list[str]:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line and line[0] != "#"), default=0)
    return [line if line.startswith("#") else line[margin:] for line in lines]
