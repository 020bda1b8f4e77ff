"""From what a user has (a CUDA file, CUDA text, PTX) to a kernel that the simulator can run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import KernelBuildError
from labkit.sim.host_headers import HOST_HEADERS
from labkit.sim.load import load_ptx
from labkit.sim.program import Kernel
from labkit.sim.symbols import is_called, spelled

if TYPE_CHECKING:
    from labkit.device.compile import Build

Macros = Mapping[str, int | float | str]
HOST_CODE = re.compile(r"<<<|\bint\s+main\s*\(|\bcudaMalloc\b")
# Functions without __device__, as libraries' headers have them for the host, and 128-bit integers, which nvcc allows.
USERS_OPTIONS = ("--device-as-default-execution-space", "--device-int128")
PTX_HEAD = re.compile(r"^\s*\.version\s+\d", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A kernel and where it comes from. text: the CUDA source; "" where only PTX was given."""

    kernel: Kernel
    text: str
    ptx: str
    file: str  # name of the source in the line table
    macros: Macros = field(default_factory=dict)
    folders: tuple[str | Path, ...] = ()  # searched for headers


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
    if is_ptx and macros:
        cure = "Give the CUDA source, or no macros."
        raise KernelBuildError(f"{file} is PTX, which is compiled already: macros have no place in it.", cure=cure)
    folders = (*folder, *include_dirs)
    ptx = text if is_ptx else _compile(text, file, macros or {}, folders).ptx
    kernels = load_ptx(ptx, exact_fma=exact_fma).kernels
    chosen = kernels[_choose(name, list(kernels), file)]
    return Program(chosen, "" if is_ptx else text, ptx, file, macros or {}, folders)


def compile_text(program: Program, text: str) -> str:
    """PTX of another text, compiled as the program was. Raises KernelBuildError."""
    return _compile(text, program.file, program.macros, program.folders).ptx


def registers_of(program: Program) -> int:
    """Registers of a thread on a V100. Raises KernelBuildError for what its assembler refuses."""
    build = _compile(program.text, program.file, program.macros, program.folders, target="sm_70")
    return build.resources[program.kernel.name].registers


def _choose(name: str | None, kernels: list[str], file: str) -> str:
    """The symbol of the kernel that is meant: by that symbol, or by its name in C++, see labkit.sim.symbols."""
    there = "; ".join(spelled(kernel) for kernel in kernels)
    if not kernels:
        raise KernelBuildError(f"{file} has no kernel.", cure='Declare one as extern "C" __global__ void.')
    if name is None:
        if len(kernels) > 1:
            raise KernelBuildError(f"{file} has {len(kernels)} kernels.", cure=f"Name one of them: {there}.")
        return kernels[0]
    if name in kernels:
        return name
    if not isinstance(name, str):
        raise KernelBuildError(f"The name of the kernel is {name!r}.", cure=f"Kernels in {file}: {there}.")
    called = [kernel for kernel in kernels if is_called(kernel, name)]
    if not called:
        raise KernelBuildError(f"{file} has no kernel {name!r}.", cure=f"Kernels in it: {there}.")
    if len(called) > 1:
        there = "; ".join(spelled(kernel) for kernel in called)
        raise KernelBuildError(f"{file} has {len(called)} kernels {name!r}.", cure=f"Name one of them: {there}.")
    return called[0]


def existing_file(name: str) -> Path:
    """A name of the command line, which is always a file's. Raises KernelBuildError where there is none."""
    path = Path(name)
    if not path.is_file():
        raise KernelBuildError(f"{name} is no file.", cure="Give the path of a .cu or .ptx file.")
    return path


def _read(source: str | Path) -> tuple[str, str, list[Path]]:
    """(text, name, folders to search for headers)."""
    if not isinstance(source, str | Path) or source == "":
        cure = "Give the path of a .cu or .ptx file, or the source itself as a str."
        raise KernelBuildError(f"The source is {source!r:.60}.", cure=cure)
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return source, "kernel.cu", []
    from labkit.device.sources import read_source

    path = Path(source)
    try:
        return read_source(path), path.name, [path.parent]
    except (OSError, ValueError) as error:  # ValueError: a name that holds a zero byte
        cure = "Give the path of a .cu or .ptx file, or the source itself."
        raise KernelBuildError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", cure=cure
        ) from None


def _compile(text: str, file: str, macros: Macros, folders: Sequence[str | Path], target: str = "compute_70") -> Build:
    from labkit.device.compile import compile_collected  # needs NVRTC, which PTX does without
    from labkit.device.sources import Source, collect, source_root

    own = collect(text, file, [*map(Path, folders), source_root()])
    everything = Source(file, text, {**HOST_HEADERS, **own.headers})
    try:
        return compile_collected(everything, target=target, macros=macros, extra_options=USERS_OPTIONS)
    except KernelBuildError as error:
        if HOST_CODE.search(text) and "__CUDACC_RTC__" not in text:
            error.cure = "Hide main() and other host code behind #ifndef __CUDACC_RTC__; only kernels are run here."
        raise
