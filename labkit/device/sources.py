"""The CUDA sources: where they lie, and which files a source includes.

A checkout reads ``cuda/`` in place, beside the package; a wheel carries the same folder as ``labkit/_cuda``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import labkit
from labkit.errors import KernelBuildError

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One text and every header of ours that it reaches, by the name under which it is included."""

    name: str  # as it appears in messages and line tables, such as "rmsnorm/3_vector.cu"
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


def source_root() -> Path:
    """The folder that holds one folder of CUDA files for each operation. Raises KernelBuildError if it is missing."""
    package = Path(labkit.__file__).parent
    for folder in (package.parent / "cuda", package / "_cuda"):
        if any(folder.glob("*/*.cu")):
            return folder
    raise KernelBuildError("This installation of labkit has no CUDA sources.", cure="Install labkit again.")


def rung_path(op: str, rung: str) -> Path:
    """The file of one rung. Raises KernelBuildError, which names those that there are, if it is missing."""
    path = source_root() / op / f"{rung}.cu"
    if path.is_file():
        return path
    if path.parent.is_dir():
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.cu"))) or "none"
        raise KernelBuildError(f"Operation {op} has no rung {rung!r}.", cure=f"Its rungs: {there}.", op=op, rung=rung)
    there = ", ".join(sorted({file.parent.name for file in source_root().glob("*/*.cu")}))
    raise KernelBuildError(f"There is no operation {op!r} in cuda/.", cure=f"There are: {there}.", op=op, rung=rung)


def read_rung(op: str, rung: str) -> Source:
    """One rung with its headers, read again whenever a file of it has changed."""
    path = rung_path(op, rung)
    return collect(path.read_text(encoding="utf-8"), f"{op}/{rung}.cu", (path.parent, source_root()))


def collect(text: str, name: str, folders: Sequence[Path]) -> Source:
    """A text with the headers that it includes from ``folders``, directly or through one another.

    A header is looked for beside the header that includes it, then in ``folders``; what is found nowhere is the
    toolkit's, and its version stands for it. Headers travel to the compiler as text, so that what it compiles and what
    its result is filed under are the same, and no path gets into the result. Raises KernelBuildError where one name
    means two files.
    """
    found: dict[str, Path] = {}
    headers: dict[str, str] = {}
    pending: list[tuple[str, Sequence[Path]]] = [(text, folders)]
    while pending:
        including, places = pending.pop()
        for wanted in INCLUDE.findall(including):
            path = next((folder / wanted for folder in places if (folder / wanted).is_file()), None)
            if path is None:
                continue
            if wanted not in found:
                found[wanted] = path
                headers[wanted] = _read(path, path.stat().st_mtime_ns)
                pending.append((headers[wanted], (path.parent, *folders)))
            elif not path.samefile(found[wanted]):
                message = f"{name} includes two files as {wanted!r}: {found[wanted]} and {path}."
                raise KernelBuildError(message, cure="Include them by different names.")
    return Source(name, text, dict(sorted(headers.items())))


@cache
def _read(path: Path, modified: int) -> str:
    return path.read_text(encoding="utf-8")
