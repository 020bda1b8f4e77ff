"""Compiled kernels carried from elsewhere: a folder of PTX and cubins with a manifest that says what is what.

`labkit build --out DIR` writes such a folder, ``LABKIT_KERNEL_DIR`` names one, and a wheel holds one. An entry is found
by operation, rung and macros, and belongs to the exact text of the source and its headers: the manifest names the
compiler, but any that made it will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.device.ladder import Macros
from labkit.device.manifest import MANIFEST, PTX, REMAKE, File, Record, content_digest, macro_words, read_manifest
from labkit.device.resources import Resources
from labkit.device.sources import Source
from labkit.errors import KernelBuildError

__all__ = ["MANIFEST", "Image", "KernelFolder", "macro_words", "open_folder"]


@dataclass(frozen=True)
class Image:
    """One specialised rung, compiled: PTX for the simulator and newer GPUs, cubins and resources by architecture."""

    ptx: str
    cubins: Mapping[str, bytes]
    resources: Mapping[str, Mapping[str, Resources]]  # architecture -> kernel -> resources
    compiler: str


class KernelFolder:
    """Reads one folder. Raises KernelBuildError if its manifest is missing or broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = read_manifest(folder)

    def find(self, op: str, rung: str, macros: Macros, source: Source) -> Image | None:
        """The image made from exactly this source; None if there is none.

        Raises KernelBuildError for damaged PTX, and when a cubin that is damaged is taken from the image. A folder
        that was written anew since it was opened is read anew.
        """
        while True:
            manifest = self._manifest
            record = manifest.find(op, rung, macros)
            if record is None or record.source != source.digest:
                return None
            try:
                ptx = _content(self.folder, record.files[PTX]).decode()
                return Image(ptx, _Cubins(self.folder, record), record.resources, manifest.compiler)
            except KernelBuildError:
                self._manifest = read_manifest(self.folder)
                if self._manifest == manifest:
                    raise

    def is_stale(self, op: str, rung: str, macros: Macros) -> bool:
        """Whether the folder has this kernel, made from another text (asked when ``find`` found none)."""
        return self._manifest.find(op, rung, macros) is not None

    def carried(self, op: str, rung: str) -> list[Mapping[str, str]]:
        """The macro sets with which the folder has a rung."""
        return [record.macros for record in self._manifest.records if (record.op, record.rung) == (op, rung)]


class _Cubins(Mapping[str, bytes]):
    """Machine code by architecture, read when it is asked for: the simulator never does."""

    def __init__(self, folder: Path, record: Record) -> None:
        self._folder = folder
        self._files = {target: file for target, file in record.files.items() if target != PTX}

    def __getitem__(self, target: str) -> bytes:
        return _content(self._folder, self._files[target])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _content(folder: Path, file: File) -> bytes:
    path = folder / file.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KernelBuildError(f"{path} cannot be read ({error.strerror}).", cure=REMAKE) from error
    if content_digest(content) != file.sha256:
        raise KernelBuildError(f"{path} is damaged.", cure=REMAKE)
    return content


@cache
def open_folder(folder: Path) -> KernelFolder:
    """A folder, read once in a process."""
    return KernelFolder(folder)
