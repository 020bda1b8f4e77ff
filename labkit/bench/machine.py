"""The machine under the benchmark, by name."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import psutil


@cache
def cpu_name() -> str:
    """The processor's name with its logical cores, such as "AMD EPYC 7571 (2 cores)"."""
    name = proc_value(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()
    return f"{name} ({psutil.cpu_count()} cores)"


def proc_value(path: Path, key: str) -> str:
    """The value of the first "key : value" line of a file under Linux's /proc; "" where there is none."""
    if not path.is_file():
        return ""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == key), "")


def driver_version() -> str:
    """The version of NVIDIA's driver, as ``nvidia-smi`` names it; "unknown" where it does not answer."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return next(iter(done.stdout.split()), "unknown")
