"""The manifest of a folder of compiled kernels: what is in it, checked once when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from labkit.device.ladder import Macros
from labkit.device.resources import Resources
from labkit.errors import KernelBuildError

MANIFEST = "manifest.json"
FORMAT = 1
PTX = "compute_70"  # what PTX is filed under; cubins are filed under their architecture
REMAKE = "Make the folder again: labkit build --out DIR."

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class File:
    """A file of the folder and the SHA-256 of what must be in it."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Record:
    """One rung with one set of macros. files: PTX, and cubins by architecture."""

    op: str
    rung: str
    macros: Mapping[str, str]
    source: str  # digest of the text and its headers
    files: Mapping[str, File]
    resources: Mapping[str, Mapping[str, Resources]]  # architecture -> kernel -> resources

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        resources = {t: {entry: r.to_dict() for entry, r in sorted(e.items())} for t, e in self.resources.items()}
        return {**vars(self), "files": {t: vars(file) for t, file in self.files.items()}, "resources": resources}


@dataclass(frozen=True)
class Manifest:
    """All records of a folder."""

    compiler: str
    records: tuple[Record, ...]

    def find(self, op: str, rung: str, macros: Macros) -> Record | None:
        return self._by_key.get(_key(op, rung, macro_words(macros)))

    @cached_property
    def _by_key(self) -> dict[str, Record]:
        return {_key(record.op, record.rung, record.macros): record for record in self.records}

    def to_json(self) -> str:
        """As it stands in the file."""
        records = [record.to_dict() for record in self.records]
        return json.dumps({"format": FORMAT, "compiler": self.compiler, "kernels": records}, indent=1) + "\n"


def macro_words(macros: Macros) -> dict[str, str]:
    """Macros as the compiler sees them: 5120 and "5120" are the same."""
    return {name: str(int(value) if isinstance(value, bool) else value) for name, value in sorted(macros.items())}


def content_digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises KernelBuildError if it is missing or not what ``to_json`` writes."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            message = f"{path} is of format {document['format']!r}, which this labkit does not read."
            raise KernelBuildError(message, cure=REMAKE)
        records = tuple(_record(each) for each in _a(list, document["kernels"]))
        return Manifest(_a(str, document["compiler"]), records)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror})."
        raise KernelBuildError(
            message, cure="Point LABKIT_KERNEL_DIR to a folder made by labkit build --out."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KernelBuildError(f"{path} is no manifest of kernels.", cure=REMAKE) from error


def _record(document: dict[str, Any]) -> Record:
    """Raises KeyError, TypeError, AttributeError or ValueError for another form."""
    files = {_a(str, target): _file(file) for target, file in document["files"].items()}
    if PTX not in files:
        raise KeyError(PTX)
    return Record(
        op=_a(str, document["op"]),
        rung=_a(str, document["rung"]),
        macros={name: _a(str, value) for name, value in document["macros"].items()},
        source=_a(str, document["source"]),
        files=files,
        resources={
            target: {entry: _resources(numbers) for entry, numbers in entries.items()}
            for target, entries in document["resources"].items()
        },
    )


def _resources(numbers: dict[str, Any]) -> Resources:
    return Resources(**{name: _a(int, number) for name, number in numbers.items()})


def _file(document: dict[str, Any]) -> File:
    name = _a(str, document["name"])
    if Path(name).name != name:
        raise ValueError(name)  # a manifest names files of its own folder only
    return File(name, _a(str, document["sha256"]))


def _a(kind: type[Kind], value: Any) -> Kind:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _key(op: str, rung: str, words: Mapping[str, str]) -> str:
    return json.dumps([op, rung, words], sort_keys=True)
