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


def function_text(function: str | Callable[..., Any], op: str = "", rung: str = "") -> str:
    """The text of a Python function, or of a CUDA function by its name: from the rung's file or a header of it.

    Raises KeyError if no file of the rung defines it.
    """
    if not isinstance(function, str):
        return getsource(function).rstrip()
    source = read_rung(op, rung)
    for text in (source.text, *source.headers.values()):
        if found := _definition(function, text):
            return found
    raise KeyError(f"no function {function} in {source.name} and its headers")


def _definition(name: str, text: str) -> str | None:
    """From the line with the name (and a line before it that begins with template or extern) to the closing brace.

    Definitions and their braces stand at the left edge, calls do not; a short one ends on the line that it begins on.
    """
    head = rf"^(?:(?:template|extern)[^\n]*\n\s*|(?=\S))[^\n/#]*\b{re.escape(name)}\([^;{{}}]*{{"
    found = re.search(head + r"(?:[^\n]*}$|[\s\S]*?^})", text, re.MULTILINE)
    return found.group() if found else None
