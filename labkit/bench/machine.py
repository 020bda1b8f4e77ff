"""The machine under the benchmark: its name, and the memory that this process has used."""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path

import psutil


@cache
def cpu_name() -> str:
    """The processor's name with its logical cores, such as "AMD EPYC 7571 (2 cores)"."""
    return f"{_linux_cpu_name() or platform.processor() or platform.machine()} ({psutil.cpu_count()} cores)"


def _linux_cpu_name() -> str:
    return _proc_value(Path("/proc/cpuinfo"), "model name")


def peak_memory_bytes() -> int:
    """The largest resident memory that this process has had, in bytes; mapped files count.

    Linux is asked through /proc, since its ``getrusage`` starts a child at the memory of the process that forked it.
    """
    high_water = _proc_value(Path("/proc/self/status"), "VmHWM")
    if high_water:
        return int(high_water.split()[0]) * 1024
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _proc_value(path: Path, key: str) -> str:
    """The value of the first "key : value" line of a file under /proc; "" where there is none."""
    if not path.is_file():
        return ""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == key), "")
