"""The CUDA sources: where they lie, and which files a source includes.

A checkout reads ``cuda/`` in place, beside the package; a wheel carries the same folder as ``labkit/_cuda``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from labkit.device.cache import digest
from labkit.errors import KernelBuildError

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
Stamp = tuple[int, int]  # time of the last change in nanoseconds, size in bytes


@dataclass(frozen=True)
class Source:
    """One text and every header of ours that it reaches, by the name under which it is included."""

    name: str  # as it appears in messages and line tables, such as "rmsnorm/3_vector.cu"
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of the text and all headers of ours."""
        return digest([self.text, dict(self.headers)])


def source_root() -> Path:
    """The folder that holds one folder of CUDA files for each operation. Raises KernelBuildError if it is missing."""
    return _root_beside(__file__)


@cache
def _root_beside(module: str) -> Path:
    package = Path(module).parents[1]
    for folder in (package.parent / "cuda", package / "_cuda"):
        if any(folder.glob("*/*.cu")):
            return folder
    raise KernelBuildError("This installation of labkit has no CUDA sources.", cure="Install labkit again.")


def rung_path(op: str, rung: str) -> Path:
    """The file of one rung. Raises KernelBuildError, which names those that there are, if it is missing."""
    folder = source_root() / op
    path = folder / f"{rung}.cu"
    is_operation = folder.name == op and folder.is_dir()  # names are names here, not paths
    if is_operation and (path.parent, path.stem) == (folder, rung) and path.is_file():
        return path
    if is_operation:
        there = ", ".join(sorted(file.stem for file in folder.glob("*.cu"))) or "none"
        raise KernelBuildError(f"Operation {op} has no rung {rung!r}.", cure=f"Its rungs: {there}.", op=op, rung=rung)
    there = ", ".join(sorted({file.parent.name for file in source_root().glob("*/*.cu")}))
    raise KernelBuildError(f"There is no operation {op!r} in cuda/.", cure=f"There are: {there}.", op=op, rung=rung)


def read_rung(op: str, rung: str) -> Source:
    """One rung with its headers, read again whenever a file of it has changed."""
    place = source_root(), op, rung
    known = _remembered.get(place)
    if known is None or any(_stamp(file) != stamp for file, stamp in known.stamps.items()):
        known = _remembered[place] = _read_rung(op, rung)
    return known.source


class _Remembered(NamedTuple):
    source: Source
    stamps: dict[str, Stamp | None]  # of its files when they were read


_remembered: dict[tuple[Path, str, str], _Remembered] = {}


def _read_rung(op: str, rung: str) -> _Remembered:
    path = rung_path(op, rung)
    stamps = {str(path): _stamp(str(path))}
    text, name, folders = read_source(path), f"{op}/{rung}.cu", (path.parent, source_root())
    headers = _headers(text, name, folders, stamps)
    return _Remembered(Source(name, text, headers), stamps)


def _stamp(file: str) -> Stamp | None:
    """What changes when a file does; None where it is gone."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def collect(text: str, name: str, folders: Sequence[Path]) -> Source:
    """A text with the headers that it includes from ``folders``, directly or through one another.

    A header is looked for beside the header that includes it, then in ``folders``; what is found nowhere is the
    toolkit's, see `toolkit_headers`. Headers travel to the compiler as text, so that what it compiles and what
    its result is filed under are the same, and no path gets into the result. Raises KernelBuildError where one name
    means two files, and for a text that no compiler can be given.
    """
    return Source(name, text, _headers(text, name, folders, {}))


def _headers(text: str, name: str, folders: Sequence[Path], stamps: dict[str, Stamp | None]) -> dict[str, str]:
    """The headers of ``collect``. Leaves in ``stamps`` when each was last changed."""
    found: dict[str, Path] = {}
    headers: dict[str, str] = {}
    pending: list[tuple[str, Sequence[Path]]] = [(text, folders)]
    while pending:
        including, places = pending.pop()
        _check_text(name, including)
        for wanted in INCLUDE.findall(including):
            path = next((folder / wanted for folder in places if (folder / wanted).is_file()), None)
            if path is None:
                continue
            if wanted not in found:
                found[wanted] = path
                stamps[str(path)] = _stamp(str(path))
                headers[wanted] = read_source(path)
                pending.append((headers[wanted], (path.parent, *folders)))
            elif not path.samefile(found[wanted]):
                message = f"{name} includes two files as {wanted!r}: {found[wanted]} and {path}."
                raise KernelBuildError(message, cure="Include them by different names.")
    return dict(sorted(headers.items()))


def _check_text(name: str, text: str) -> None:
    """The compiler takes UTF-8, and would take a text that holds a zero byte for its end."""
    if not isinstance(text, str) or not isinstance(name, str):
        raise KernelBuildError(f"The source is a {type(text).__name__}.", cure="Give its text and its name.")
    bad = re.search("[\0\ud800-\udfff]", text + name)
    if bad:
        message = f"{name!r} holds the character {bad[0]!r}, which is no text."
        raise KernelBuildError(message, cure="Save the source as UTF-8.")


def read_source(path: Path) -> str:
    """The text of a CUDA file: UTF-8, with or without a mark at its start, else Latin-1, as older editors saved it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return path.read_text(encoding="latin-1")
