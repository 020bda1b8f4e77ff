"""The machine code of a kernel as text, where a disassembler that knows it is at hand.

nvdisasm of CUDA 13 refuses sm_70, and NVIDIA has no wheel of an earlier one; triton 3.5 brings one of CUDA 12.8.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from labkit.device.toolkit import find_tool
from labkit.errors import KernelBuildError

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?P<text>[^.\s;][^;\n]*);", re.MULTILINE)


def disassemble(cubin: bytes) -> str:
    """What nvdisasm makes of a cubin's kernels. Raises KernelBuildError where there is no nvdisasm of CUDA 12."""
    program = find_tool("nvdisasm")
    if program is None:
        cure = "Put nvdisasm of a CUDA 12 toolkit on the PATH, or: python -m pip install 'triton>=3.5,<3.6'"
        raise KernelBuildError("No nvdisasm of CUDA 12 is here, and later ones do not know sm_70.", cure=cure)
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        file = Path(scratch) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [program, "--print-code", str(file)], capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode:
        told = " ".join(done.stderr.split())
        raise KernelBuildError(f"{program} failed: {told}.", cure="Use nvdisasm of CUDA 12.")
    return done.stdout


def instructions(sass: str) -> list[str]:
    """The instructions of a disassembly in order, such as "HMMA.884.F32.F32.STEP0 R8, R4, R6, R8"."""
    return [" ".join(match["text"].split()) for match in INSTRUCTION.finditer(sass)]
