"""What pyproject.toml cannot say: a wheel carries the CUDA sources and the PTX that they compile to.

The sources become ``labkit/_cuda``, the PTX of every shipped kernel ``labkit/_ptx``: with it the simulator works where
NVRTC has no wheel. Nothing else is imported here than what needs neither torch nor numpy.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
WITHOUT_PTX = "LABKIT_WHEEL_WITHOUT_PTX"


class BuildWithKernels(build_py):
    """Copies the Python files as always, then adds sources and PTX."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / "labkit"
            carry_sources(package / "_cuda")
            carry_ptx(package / "_ptx")


def carry_sources(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)  # what an earlier build left
    shutil.copytree(ROOT / "cuda", target)


def carry_ptx(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if os.environ.get(WITHOUT_PTX):
        return
    sys.path.insert(0, str(ROOT))
    from labkit.device.build_all import build_all, shipped
    from labkit.errors import KernelBuildError

    try:
        build_all(shipped(ROOT / "cuda"), "compute_70", target)
    except KernelBuildError as error:
        cure = f"Or build without compiled kernels: {WITHOUT_PTX}=1."
        sys.exit(f"labkit: a wheel carries compiled kernels, and they cannot be made here. {error} {cure}")


setup(cmdclass={"build_py": BuildWithKernels})
