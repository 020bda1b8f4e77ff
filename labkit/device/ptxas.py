"""Machine code for newer GPUs from the PTX that was made for the V100, by the assembler of CUDA 12.

The driver of such a GPU would do the same when it loads the PTX; done beforehand, a fresh machine compiles nothing.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from labkit.device.resources import Resources, parse_report
from labkit.device.toolkit import find_tool
from labkit.errors import KernelBuildError

NO_ASSEMBLER = "python -m pip install 'nvidia-cuda-nvcc-cu12>=12.4,<13', or put ptxas of CUDA 12 on the PATH."


def assemble(ptx: str, arch: str, *, op: str = "", rung: str = "") -> tuple[bytes, dict[str, Resources]]:
    """(cubin, resources of each kernel) for ``arch``, such as "sm_90". Raises KernelBuildError."""
    program = find_tool("ptxas")
    if program is None:
        raise KernelBuildError(f"No ptxas of CUDA 12 assembles for {arch} here.", cure=NO_ASSEMBLER, op=op, rung=rung)
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        source, target = Path(scratch) / "kernel.ptx", Path(scratch) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        options = (f"-arch={arch}", "-v", str(source), "-o", str(target))
        done = subprocess.run([program, *options], capture_output=True, text=True, timeout=600, check=False)
        log = done.stdout + done.stderr
        if done.returncode:
            first = next((line for line in log.splitlines() if "error" in line or "fatal" in line), log.strip())
            message = f"{program.name} does not assemble {op}/{rung} for {arch}: {first}."
            cure = "Choose an architecture that `ptxas --help` lists; a ptxas older than NVRTC reads no newer PTX."
            raise KernelBuildError(message, cure=cure, op=op, rung=rung, options=options, log=log)
        return target.read_bytes(), parse_report(log)
