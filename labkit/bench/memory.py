"""How much memory this process has needed."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from labkit.bench.machine import proc_value


def peak_memory_bytes() -> int:
    """The largest resident memory that this process has had, in bytes; mapped files count.

    Linux is asked through /proc: its ``getrusage`` credits a child with the memory of the process that started it.
    """
    high_water = proc_value(Path("/proc/self/status"), "VmHWM")
    if high_water:
        return int(high_water.split()[0]) * 1024
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
