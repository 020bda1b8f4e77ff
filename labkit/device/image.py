"""One compiled rung, from wherever it can be had.

In this order: the folder that ``LABKIT_KERNEL_DIR`` names; NVRTC with its cache; the PTX that a wheel carries. Each
holds what was made from the very source that is here, or is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

import labkit
from labkit.device.carried import Image, KernelFolder, open_folder
from labkit.device.compile import compile_collected
from labkit.device.ladder import Macros
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sources import Source, read_rung
from labkit.device.toolkit import HAS_WHEELS, NO_COMPILER, header_folders
from labkit.errors import KernelBuildError

WHEEL_FOLDER = Path(labkit.__file__).parent / "_ptx"


def find_image(op: str, rung: str, macros: Macros, source: Source | None = None) -> Image:
    """A rung compiled with these macros. Raises KernelBuildError, with cause and cure, if it cannot be had."""
    source = source or read_rung(op, rung)
    chosen, carried = _folders()
    if chosen is not None and (image := chosen.find(op, rung, macros, source)) is not None:
        return image
    if find_nvrtc() is not None and header_folders():
        return build_image(op, rung, macros, source)
    if carried is not None and (image := carried.find(op, rung, macros, source)) is not None:
        return image
    if find_nvrtc() is not None:  # a source that needs no headers does compile; others name what is missing
        return build_image(op, rung, macros, source)
    raise _nowhere(op, rung, macros, chosen or carried)


def build_image(op: str, rung: str, macros: Macros, source: Source | None = None) -> Image:
    """A rung compiled here by NVRTC, or earlier and kept in the cache. Raises KernelBuildError."""
    build = compile_collected(source or read_rung(op, rung), target="sm_70", macros=macros, op=op, rung=rung)
    if build.cubin is None:
        message = f"{build.compiler} gave no machine code for {op}/{rung}."
        raise KernelBuildError(message, cure=NO_COMPILER, op=op, rung=rung, log=build.log)
    return Image(build.ptx, {"sm_70": build.cubin}, {"sm_70": build.resources}, build.compiler)


def _folders() -> tuple[KernelFolder | None, KernelFolder | None]:
    """The folder of the user's choice and the wheel's."""
    value = os.environ.get("LABKIT_KERNEL_DIR")
    chosen = open_folder(Path(value).absolute()) if value else None
    return chosen, open_folder(WHEEL_FOLDER) if WHEEL_FOLDER.is_dir() else None


def _nowhere(op: str, rung: str, macros: Macros, folder: KernelFolder | None) -> KernelBuildError:
    named = f"{op}/{rung} with {dict(macros)}" if macros else f"{op}/{rung}"
    message = f"{named} is not compiled, and this machine has no NVRTC of CUDA 12, the last that knows sm_70."
    if folder is not None and folder.is_stale(op, rung, macros):
        message += f" {folder.folder} has it, but made from another version of its source."
    elif folder is not None:
        there = "; ".join(str(words) for words in folder.carried(op, rung)) or "none of its builds"
        message += f" {folder.folder} has: {there}."
    other = "; or set LABKIT_KERNEL_DIR to a folder made elsewhere by labkit build --out." if HAS_WHEELS else "."
    cure = f"{NO_COMPILER}{other}"
    return KernelBuildError(message, cure=cure, op=op, rung=rung)
