"""Compiled kernels carried from elsewhere: a folder of PTX and cubins with a manifest that says what is what.

`labkit build --out DIR` writes such a folder, ``LABKIT_KERNEL_DIR`` names one, and a wheel holds one. An entry is found
by operation, rung and macros, and belongs to the exact text of the source and its headers: the manifest names the
compiler, but any that made it will do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labkit.device.cache import digest
from labkit.device.ladder import Macros
from labkit.device.resources import Resources
from labkit.device.sources import Source
from labkit.errors import KernelBuildError

MANIFEST = "manifest.json"
FORMAT = 1
PTX = "compute_70"  # what PTX is filed under; cubins are filed under their architecture


@dataclass(frozen=True)
class Image:
    """One specialised rung, compiled: PTX for the simulator and newer GPUs, cubins and resources by architecture."""

    ptx: str
    cubins: Mapping[str, bytes]
    resources: Mapping[str, Mapping[str, Resources]]  # architecture -> kernel -> resources
    compiler: str


def source_digest(source: Source) -> str:
    """Of the text and all headers of ours."""
    return digest([source.text, dict(source.headers)])


def macro_words(macros: Macros) -> dict[str, str]:
    """Macros as the compiler sees them: 5120 and "5120" are the same."""
    return {name: str(int(value) if isinstance(value, bool) else value) for name, value in sorted(macros.items())}


class KernelFolder:
    """Reads one folder. Raises KernelBuildError if its manifest is missing or broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiler, self._records = _read_manifest(folder)

    def find(self, op: str, rung: str, macros: Macros, source: Source) -> Image | None:
        """The image made from exactly this source; None if there is none. Raises KernelBuildError for damaged files."""
        record = self._record(op, rung, macros)
        if record is None or record["source"] != source_digest(source):
            return None
        files = {target: self._file(record, target) for target in record["files"]}
        resources = {
            target: {entry: Resources(**numbers) for entry, numbers in entries.items()}
            for target, entries in record["resources"].items()
        }
        return Image(files.pop(PTX).decode(), files, resources, self.compiler)

    def is_stale(self, op: str, rung: str, macros: Macros) -> bool:
        """Whether the folder has this kernel, made from another text (asked when ``find`` found none)."""
        return self._record(op, rung, macros) is not None

    def carried(self, op: str, rung: str) -> list[dict[str, str]]:
        """The macro sets with which the folder has a rung."""
        return [macros for name, there, macros in _keys(self._records.values()) if (name, there) == (op, rung)]

    def _record(self, op: str, rung: str, macros: Macros) -> dict[str, Any] | None:
        return self._records.get(_key(op, rung, macro_words(macros)))

    def _file(self, record: dict[str, Any], target: str) -> bytes:
        path = self.folder / record["files"][target]["name"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise KernelBuildError(f"{path} cannot be read ({error.strerror}).", cure=_REMAKE) from error
        if hashlib.sha256(content).hexdigest() != record["files"][target]["sha256"]:
            raise KernelBuildError(f"{path} is damaged.", cure=_REMAKE)
        return content


_REMAKE = "Make the folder again: labkit build --out DIR."


def write_folder(
    folder: Path, compiler: str, images: Mapping[tuple[str, str], list[tuple[Macros, Source, Image]]]
) -> None:
    """Write PTX, cubins and manifest. ``images`` maps (op, rung) to its specialisations. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for (op, rung), specialised in images.items():
        for macros, source, image in specialised:
            words, proof = macro_words(macros), source_digest(source)
            stem = f"{op}-{rung}-{digest([words, proof])[:12]}"
            files = {PTX: (f"{stem}.ptx", image.ptx.encode())}
            files |= {target: (f"{stem}.{target}.cubin", cubin) for target, cubin in image.cubins.items()}
            for name, content in files.values():
                (folder / name).write_bytes(content)
            proofs = {t: {"name": n, "sha256": hashlib.sha256(c).hexdigest()} for t, (n, c) in files.items()}
            resources = {t: {entry: r.to_dict() for entry, r in sorted(e.items())} for t, e in image.resources.items()}
            record = {"op": op, "rung": rung, "macros": words, "source": proof, "files": proofs, "resources": resources}
            records.append(record)
    document = {"format": FORMAT, "compiler": compiler, "kernels": records}
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


@cache
def open_folder(folder: Path) -> KernelFolder:
    """A folder, read once in a process."""
    return KernelFolder(folder)


def _read_manifest(folder: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            message = f"{path} is of format {document['format']}, which this labkit does not read."
            raise KernelBuildError(message, cure=_REMAKE)
        records = {_key(r["op"], r["rung"], r["macros"]): r for r in document["kernels"]}
        return str(document["compiler"]), records
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror})."
        raise KernelBuildError(
            message, cure="Point LABKIT_KERNEL_DIR to a folder made by labkit build --out."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise KernelBuildError(f"{path} is no manifest of kernels.", cure=_REMAKE) from error


def _key(op: str, rung: str, words: Mapping[str, str]) -> str:
    return json.dumps([op, rung, words], sort_keys=True)


def _keys(records: Any) -> list[tuple[str, str, dict[str, str]]]:
    return [(record["op"], record["rung"], record["macros"]) for record in records]
