"""From CUDA C++ to PTX and machine code for the V100, on any machine that has NVRTC 12.x, and remembered.

One run of NVRTC for ``sm_70`` gives three things: the cubin that a V100 runs, the PTX that any newer GPU and the
simulator run, and the assembler's report of registers, spills and shared memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from labkit.device import cache
from labkit.device.ladder import Macros
from labkit.device.nvrtc import Nvrtc, find_nvrtc
from labkit.device.resources import Resources, parse_report
from labkit.device.sources import Source, collect
from labkit.device.toolkit import NO_COMPILER, NO_HEADERS, header_folders
from labkit.device.toolkit_headers import toolkit_headers
from labkit.errors import KernelBuildError

FORMAT = 1  # of what is filed in the cache
TARGETS = ("sm_70", "compute_70")
NO_CURAND = "python -m pip install 'nvidia-curand-cu12>=10.3,<11'"
NO_SUCH_HEADER = "Name its folder in include_dirs; hide what only host code needs behind #ifndef __CUDACC_RTC__."
MISSING_HEADER = re.compile(r'open source file "([^"]+)"')
NOT_ON_A_V100 = "Keep within what a V100 has."
ERROR = re.compile(r"^(?P<where>[^\n(]*\(\d+\)): (?:catastrophic )?error[^:\n]*: (?P<what>.+)$", re.MULTILINE)
ASSEMBLER_ERROR = re.compile(r"^ptxas (?:error|fatal)\s*: (?P<what>.+)$", re.MULTILINE)
MACRO_NAME = re.compile(r"[A-Za-z_]\w*")
# NVRTC 12.9 says of every V100 build that it will be the last: true, and of no use to the reader of a log.
DEPRECATED = re.compile(r"^.*warning.*[Aa]rchitectures prior to .*deprecated.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """A compiled source. ``cubin`` and ``resources`` (by kernel) are empty for the virtual target compute_70."""

    name: str
    target: str
    compiler: str  # "NVRTC 12.8"
    ptx: str
    cubin: bytes | None
    log: str
    resources: Mapping[str, Resources]


def compile_source(
    text: str,
    name: str = "kernel.cu",
    *,
    target: str = "sm_70",
    macros: Macros | None = None,
    include_dirs: Sequence[str | Path] = (),
) -> Build:
    """Compile a CUDA source; a source that was compiled before comes from the cache.

    ``target`` is "sm_70" (PTX, cubin and resources) or "compute_70" (PTX only). ``include_dirs`` are searched for
    ``#include``; the toolkit's headers are always found. Raises KernelBuildError with the compiler's log.
    """
    source = collect(text, name, [Path(folder) for folder in include_dirs])
    return compile_collected(source, target=target, macros=macros or {})


def compile_collected(
    source: Source, *, target: str, macros: Macros, op: str = "", rung: str = "", extra_options: Sequence[str] = ()
) -> Build:
    """``compile_source`` for a source whose headers are known; errors carry the op and the rung."""
    options = [*compiler_options(target, macros), *extra_options]
    nvrtc = find_nvrtc()
    if nvrtc is None:
        message = f"{source.name} cannot be compiled: this machine has no NVRTC of CUDA 12, the last that knows sm_70."
        raise KernelBuildError(message, cure=NO_COMPILER, op=op, rung=rung, options=tuple(options))
    folders = header_folders()
    parts = [FORMAT, str(nvrtc), options, source.name, source.text, dict(source.headers)]
    key = cache.digest([*parts, toolkit_headers(source, folders)])
    if (document := cache.load(key)) is not None:
        return _build(source.name, target, str(nvrtc), document["ptx"], document["cubin"], document["log"])
    build = _run(nvrtc, source, target, options, folders, op, rung)
    cache.store(key, {"ptx": build.ptx, "cubin": build.cubin, "log": build.log})
    return build


def compiler_options(target: str, macros: Macros) -> list[str]:
    """What NVRTC is told, but for the place of the toolkit's headers. Raises KernelBuildError for what it cannot be."""
    if target not in TARGETS:
        raise KernelBuildError(f"Sources are not compiled for {target!r}.", cure=f"Targets: {', '.join(TARGETS)}.")
    if not isinstance(macros, Mapping) or not all(isinstance(macro, str) for macro in macros):
        raise KernelBuildError(f"The macros are {macros!r}.", cure='Give a dict, such as {"TILE": 16}.')
    options = [f"-arch={target}", "-std=c++17", "-lineinfo"]
    if target.startswith("sm_"):
        options.append("--ptxas-options=-v")
    for macro, value in sorted(macros.items()):
        if not MACRO_NAME.fullmatch(macro):
            raise KernelBuildError(f"{macro!r} is no name for a macro.", cure="Use letters, digits and underscores.")
        if not isinstance(value, str | Real):
            raise KernelBuildError(f"The macro {macro} is {value!r}.", cure="Give a number or a text.")
        options.append(f"-D{macro}={int(value) if isinstance(value, bool) else value}")
    return options


def _run(
    nvrtc: Nvrtc, source: Source, target: str, options: list[str], folders: Sequence[Path], op: str, rung: str
) -> Build:
    compiled = nvrtc.compile(source.text, source.name, source.headers, [*options, *(f"-I{path}" for path in folders)])
    log = DEPRECATED.sub("", compiled.log)
    if not compiled.succeeded:
        message, cure = _explain(source.name, log, headers_found=bool(folders))
        raise KernelBuildError(message, cure=cure, op=op, rung=rung, options=tuple(options), log=log)
    return _build(source.name, target, str(nvrtc), _without_folders(compiled.ptx, folders), compiled.cubin, log)


def _without_folders(ptx: str, folders: Sequence[Path]) -> str:
    """A line table must not depend on where a toolkit lies, or where the compiler was called."""
    for folder in (*folders, Path.cwd()):
        ptx = ptx.replace(f'"{os.path.join(folder, "")}', '"')
    return ptx


def _build(name: str, target: str, compiler: str, ptx: str, cubin: bytes | None, log: str) -> Build:
    return Build(name, target, compiler, ptx, cubin, log, parse_report(log))


def _explain(name: str, log: str, *, headers_found: bool) -> tuple[str, str]:
    """The first error of a log as a message, and the cure for it."""
    if log.startswith("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"):
        return f"{name} does not compile: NVRTC's library of builtins is damaged.", f"{NO_COMPILER} --force-reinstall"
    first = ERROR.search(log)
    assembler = ASSEMBLER_ERROR.search(log)
    if first is None and assembler is not None:
        return f"{name} does not compile: {assembler['what'].rstrip('.')}.", NOT_ON_A_V100
    told = f"{first['where']}: {first['what']}" if first else next(iter(log.splitlines()), "no reason given")
    missing = MISSING_HEADER.search(told)
    if missing and not headers_found:
        return f"{name} does not compile: CUDA's headers are missing ({told}).", NO_HEADERS
    if missing:
        cure = NO_CURAND if missing[1].startswith("curand") else NO_SUCH_HEADER
        return f"{name} does not compile: {told}.", cure
    return f"{name} does not compile: {told}.", "Correct the source."
