"""What a kernel's CUDA declaration says of its parameters that PTX does not: names, signs, what pointers point to."""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__)\b")


@dataclass(frozen=True)
class Declared:
    """One parameter: "const half* __restrict__ x" is (x, half, pointer, constant)."""

    name: str
    type: str  # of a number, or of what a pointer points to; without qualifiers, one space between words
    pointer: bool
    constant: bool  # what it points to is only read


def declared_parameters(text: str, entry: str) -> tuple[Declared, ...] | None:
    """The parameters of ``__global__ ... entry(...)``; None where the text does not show them (macros, templates)."""
    parts = _parts(text, entry)
    found = [_parameter(part) for part in parts or ()]
    return tuple(parameter for parameter in found if parameter) if parts is not None and all(found) else None


def parameter_names(text: str, entry: str) -> list[str]:
    """The names of the parameters, "" where one cannot be read; whatever their types are."""
    names = [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part) for part in _parts(text, entry) or ()]
    return [name[1] if name else "" for name in names]


def _parts(text: str, entry: str) -> list[str] | None:
    """The parameters as the first declaration of a kernel writes them; None where there is none."""
    plain = COMMENT.sub(" ", text)
    match = re.search(rf"__global__[^;{{}}]*?\b{re.escape(entry)}\s*\(", plain)
    inside = None if match is None else _up_to_closing(plain, match.end())
    if inside is None:
        return None
    return [part.strip() for part in inside.split(",")] if inside.strip() not in ("", "void") else []


def _up_to_closing(text: str, start: int) -> str | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _parameter(words: str) -> Declared | None:
    match = re.fullmatch(r"(?P<type>.*?[\s*&])(?P<name>\w+)", words, re.DOTALL)
    if match is None or "&" in words or "<" in words or "[" in words:
        return None
    pointer = "*" in match["type"]
    constant = bool(re.search(r"\bconst\b", match["type"].partition("*")[0]))
    plain = " ".join(QUALIFIERS.sub(" ", match["type"].replace("*", " * ")).split())
    return Declared(match["name"], plain.removesuffix(" *"), pointer, constant)
