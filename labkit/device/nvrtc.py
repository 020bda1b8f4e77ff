"""NVRTC, the compiler of CUDA C++ as a library: finding one that still knows the V100, and calling it.

CUDA 12.x is the last line that compiles for sm_70. Its NVRTC comes as a wheel that needs neither a GPU nor a driver,
and can stand beside the CUDA 13 libraries that newer builds of torch bring: so the library is looked up by its file,
and its dozen C functions are called directly. (The ``cuda-bindings`` package would have to be of version 12, and
torch for CUDA 13 requires its version 13.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.device.toolkit import WINDOWS, library_candidates

V100 = 70
OLDEST = (12, 4)  # tested from here on
NEWEST = (12, 99)
OK, COMPILATION_FAILED = 0, 6  # nvrtcResult


@dataclass(frozen=True)
class Compiled:
    """What one run of NVRTC left. cubin is None for a virtual target (compute_70)."""

    succeeded: bool
    ptx: str
    cubin: bytes | None
    log: str


class Nvrtc:
    """One loaded NVRTC library. Compiling is thread-safe and lets other Python threads run."""

    def __init__(self, path: Path | str) -> None:
        """Raises OSError if the file is no NVRTC, AttributeError if it is one from before CUDA 11.2."""
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        self.architectures = self._architectures()

    @property
    def builtins(self) -> str:
        """The library that NVRTC opens when it compiles; without it every source fails."""
        major, minor = self.version
        return f"nvrtc-builtins64_{major}{minor}.dll" if WINDOWS else f"libnvrtc-builtins.so.{major}.{minor}"

    @property
    def is_complete(self) -> bool:
        """Whether ``builtins`` is there: beside NVRTC itself, or where the loader finds it."""
        if (Path(self.path).parent / self.builtins).is_file():
            return True
        try:
            ctypes.CDLL(self.builtins)
        except OSError:
            return False
        return True

    @property
    def knows_v100(self) -> bool:
        return OLDEST <= self.version <= NEWEST and V100 in self.architectures

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def compile(self, text: str, name: str, headers: Mapping[str, str], options: list[str]) -> Compiled:
        """Compile one source. ``headers`` maps names, as ``#include`` writes them, to their text."""
        program = self._create(text, name, headers)
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), words)
            log = self._bytes(program, "ProgramLog").replace(b"\0", b"").decode(errors="replace")
            if status == COMPILATION_FAILED:
                return Compiled(False, "", None, log)
            if status != OK:
                return Compiled(False, "", None, f"{self._explain(status)}\n{log}".strip())
            ptx = self._bytes(program, "PTX").rstrip(b"\0").decode()
            return Compiled(True, ptx, self._bytes(program, "CUBIN") or None, log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _create(self, text: str, name: str, headers: Mapping[str, str]) -> ctypes.c_void_p:
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers))
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), len(headers), texts, names
        )
        return program

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw[: size.value]

    def _architectures(self) -> frozenset[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return frozenset(found)

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != OK:
            raise OSError(f"{function}: {self._explain(status)}")

    def _explain(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())


@cache
def find_nvrtc() -> Nvrtc | None:
    """The first NVRTC on this machine that compiles for sm_70; None if there is none."""
    return next((found for found in _loaded() if found.knows_v100 and found.is_complete), None)


def incomplete_nvrtc() -> Nvrtc | None:
    """One that would compile for sm_70 if its ``builtins`` were here too."""
    return next((found for found in _loaded() if found.knows_v100 and not found.is_complete), None)


def _loaded() -> Iterator[Nvrtc]:
    for candidate in library_candidates():
        try:
            yield Nvrtc(candidate)
        except (OSError, AttributeError):  # another platform's file, a broken one, or one that is too old
            continue
