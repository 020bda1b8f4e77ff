"""Where the pieces of a CUDA 12 toolkit lie: in NVIDIA's wheels, in a toolkit's folder, or beside other tools.

Every look-up goes through the same places in the same order: wheels of this Python first, because their versions are
known; then ``CUDA_HOME`` and ``CUDA_PATH``; then the folders where a system toolkit installs itself.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

WINDOWS = sys.platform == "win32"
VERSION = re.compile(r"(?:release |V)(\d+)\.(\d+)")
HEADER_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
# NVIDIA's wheels of CUDA 12 are for these; no pip install helps another machine.
HAS_WHEELS = sys.platform in ("linux", "win32") and platform.machine() in ("x86_64", "AMD64")
NVRTC_WHEEL, HEADERS_WHEEL = "'nvidia-cuda-nvrtc-cu12>=12.4,<13'", "'nvidia-cuda-runtime-cu12>=12.4,<13'"
ELSEWHERE = (
    "Wheels of it are for Linux and Windows on x86-64: here the kernels run that labkit carries compiled, with the "
    "sizes of its models, and those of a folder made elsewhere by labkit build --out DIR (LABKIT_KERNEL_DIR)"
)
NO_COMPILER = f"python -m pip install {NVRTC_WHEEL} {HEADERS_WHEEL}" if HAS_WHEELS else ELSEWHERE
NO_HEADERS = f"python -m pip install {HEADERS_WHEEL}" if HAS_WHEELS else ELSEWHERE


def wheel_folders(name: str) -> Iterator[Path]:
    """Folders of one of NVIDIA's wheels, such as "cuda_nvrtc": ``nvidia`` is a namespace package over many of them."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / name).is_dir():
            yield Path(folder) / name


def toolkit_folders() -> Iterator[Path]:
    """Roots of CUDA toolkits, the user's own choice first."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value)
    yield from sorted(Path("/usr/local").glob("cuda-12*"), reverse=True)
    yield Path("/usr/local/cuda")


def library_candidates() -> Iterator[Path | str]:
    """Files that may be NVRTC of CUDA 12, the likeliest first."""
    patterns = ("bin/nvrtc64_12*.dll",) if WINDOWS else ("lib*/libnvrtc.so.12", "lib*/libnvrtc.so.12.*")
    for root in (*wheel_folders("cuda_nvrtc"), *toolkit_folders()):
        for pattern in patterns:
            yield from sorted(path for path in root.glob(pattern) if "builtins" not in path.name)
    if not WINDOWS:
        yield "libnvrtc.so.12"  # wherever the loader finds it


@cache
def header_folders() -> tuple[Path, ...]:
    """Folders with ``cuda_fp16.h`` of CUDA 12 and, from wheels, with what users include more; empty: none here."""
    for wheel in wheel_folders("cuda_runtime"):
        if headers_version(wheel / "include") == 12:
            compiler = [folder / "include" for folder in wheel_folders("cuda_nvcc")]  # mma.h needs its crt/
            library = [folder / "include" for folder in wheel_folders("cuda_cccl")]  # cooperative_groups.h, cub
            random = [folder / "include" for folder in wheel_folders("curand")]  # curand_kernel.h
            return (wheel / "include", *(folder for folder in (*compiler, *library, *random) if folder.is_dir()))
    for root in toolkit_folders():
        if headers_version(root / "include") == 12:
            return (root / "include",)
    return ()


def foreign_headers() -> Path | None:
    """A folder with headers of another CUDA than NVRTC's, which are passed over; None if there is none."""
    roots = (*wheel_folders("cu13"), *wheel_folders("cuda_runtime"), *toolkit_folders())
    return next((root / "include" for root in roots if headers_version(root / "include") not in (None, 12)), None)


def headers_version(folder: Path) -> int | None:
    """12 for a folder with the headers of CUDA 12.x; None where ``cuda_fp16.h`` or the version is missing."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = HEADER_VERSION.search(text)
    return int(found[1]) // 1000 if found and (folder / "cuda_fp16.h").is_file() else None


def tool_candidates(name: str) -> Iterator[Path]:
    """Programs of this name ("ptxas", "nvdisasm"), the likeliest first."""
    file = f"{name}.exe" if WINDOWS else name
    folders = [folder / "bin" for folder in (*wheel_folders("cuda_nvcc"), *toolkit_folders())]
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or ()) if triton else ():
        folders.append(Path(folder) / "backends" / "nvidia" / "bin")
    on_path = shutil.which(name)
    for path in (*(folder / file for folder in folders), *([Path(on_path)] if on_path else ())):
        if path.is_file() and os.access(path, os.X_OK):
            yield path


def tool_version(path: Path) -> tuple[int, int] | None:
    """What ``--version`` of an NVIDIA tool says; None if it does not run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else None


@cache
def find_tool(name: str) -> Path | None:
    """A program of CUDA 12, the last toolkit whose tools know sm_70; None if there is none."""
    for path in tool_candidates(name):
        version = tool_version(path)
        if version and version[0] == 12:
            return path
    return None
