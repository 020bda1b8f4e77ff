"""From what a user has (a CUDA file, CUDA text, PTX) to a kernel that the simulator can run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import KernelBuildError
from labkit.sim.host_headers import HOST_HEADERS
from labkit.sim.load import load_ptx
from labkit.sim.program import Kernel

Macros = Mapping[str, int | float | str]
HOST_CODE = re.compile(r"<<<|\bint\s+main\s*\(|\bcudaMalloc\b")
PTX_HEAD = re.compile(r"^\s*\.version\s+\d", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A kernel and where it comes from. text: the CUDA source; "" where only PTX was given."""

    kernel: Kernel
    text: str
    ptx: str
    file: str  # name of the source in the line table


def load_program(
    source: str | Path,
    name: str | None = None,
    *,
    macros: Macros | None = None,
    include_dirs: Sequence[str | Path] = (),
    exact_fma: bool = True,
) -> Program:
    """The kernel ``name`` of a source, compiled for the V100; the only kernel where no name is given.

    source: CUDA C++ or PTX, as text or as the path of a file. Raises KernelBuildError with the compiler's log, or with
    the kernels that there are; PtxError for PTX that the simulator does not know.
    """
    text, file, folder = _read(source)
    is_ptx = PTX_HEAD.search(text) is not None
    ptx = text if is_ptx else _compile(text, file, macros or {}, [*folder, *include_dirs])
    kernels = load_ptx(ptx, exact_fma=exact_fma).kernels
    return Program(kernels[_choose(name, list(kernels), file)], "" if is_ptx else text, ptx, file)


def _choose(name: str | None, kernels: list[str], file: str) -> str:
    """The kernel that is meant. One that is not extern "C" goes by its own name as well as by its C++ symbol."""
    there = ", ".join(kernels)
    if not kernels:
        raise KernelBuildError(f"{file} has no kernel.", cure='Declare one as extern "C" __global__ void.')
    if name is None:
        if len(kernels) > 1:
            raise KernelBuildError(f"{file} has {len(kernels)} kernels.", cure=f"Name one of them: {there}.")
        return kernels[0]
    symbols = [kernel for kernel in kernels if kernel.startswith(f"_Z{len(name)}{name}")]
    if name not in kernels and len(symbols) != 1:
        raise KernelBuildError(f"{file} has no kernel {name!r}.", cure=f"Kernels in it: {there}.")
    return name if name in kernels else symbols[0]


def existing_file(name: str) -> Path:
    """A name of the command line, which is always a file's. Raises KernelBuildError where there is none."""
    path = Path(name)
    if not path.is_file():
        raise KernelBuildError(f"{name} is no file.", cure="Give the path of a .cu or .ptx file.")
    return path


def _read(source: str | Path) -> tuple[str, str, list[Path]]:
    """(text, name, folders to search for headers)."""
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, "kernel.cu", []
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8"), path.name, [path.parent]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        cure = "Give the path of a .cu or .ptx file, or the source itself."
        raise KernelBuildError(f"{path} cannot be read: {reason}.", cure=cure) from None


def _compile(text: str, file: str, macros: Macros, folders: Sequence[str | Path]) -> str:
    from labkit.device.compile import compile_collected  # needs NVRTC, which PTX does without
    from labkit.device.sources import Source, collect, source_root

    own = collect(text, file, [*map(Path, folders), source_root()])
    everything = Source(file, text, {**HOST_HEADERS, **own.headers})
    try:
        return compile_collected(everything, target="compute_70", macros=macros).ptx
    except KernelBuildError as error:
        if HOST_CODE.search(text) and "__CUDACC_RTC__" not in text:
            error.cure = "Hide main() and other host code behind #ifndef __CUDACC_RTC__; only kernels are run here."
        raise
