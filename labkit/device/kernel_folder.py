"""Writing a folder of compiled kernels, while others may read it or write it too.

Every file appears whole, under a name that belongs to its content, and the manifest comes last: a reader finds what
the old manifest names or what the new one does. One writer at a time; what only the old manifest named is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from labkit.device.carried import Image
from labkit.device.ladder import Macros
from labkit.device.manifest import (
    MANIFEST,
    PTX,
    File,
    Manifest,
    Record,
    content_digest,
    macro_words,
    read_manifest,
)
from labkit.device.sources import Source
from labkit.device.user_files import locked, write_whole
from labkit.errors import KernelBuildError

READABLE = 0o644  # by everybody: the folder is made to be carried


def write_folder(
    folder: Path, compiler: str, images: Mapping[tuple[str, str], list[tuple[Macros, Source, Image]]]
) -> None:
    """Write PTX, cubins and manifest. ``images`` maps (op, rung) to its specialisations. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        earlier = _names(folder)
        records = tuple(
            _write_image(folder, op, rung, *specialised)
            for (op, rung), all_specialised in images.items()
            for specialised in all_specialised
        )
        write_whole(folder / MANIFEST, Manifest(compiler, records).to_json().encode(), READABLE)
        for name in earlier - _names(folder):
            (folder / name).unlink(missing_ok=True)


def _write_image(folder: Path, op: str, rung: str, macros: Macros, source: Source, image: Image) -> Record:
    contents = {PTX: image.ptx.encode(), **image.cubins}
    files = {}
    for target, content in contents.items():
        proof = content_digest(content)
        suffix = "ptx" if target == PTX else f"{target}.cubin"
        files[target] = File(f"{op}-{rung}-{proof[:16]}.{suffix}", proof)
        write_whole(folder / files[target].name, content, READABLE)
    return Record(op, rung, macro_words(macros), source.digest, files, image.resources)


def _names(folder: Path) -> set[str]:
    """The files that the manifest names; none where there is no manifest of ours."""
    try:
        return {file.name for record in read_manifest(folder).records for file in record.files.values()}
    except KernelBuildError:
        return set()
