"""setuptools' build backend, with the CUDA compiler for those builds that compile kernels.

A wheel carries compiled PTX, so building one needs NVRTC where it exists; an editable install compiles nothing and
shall not fetch it. It puts the checkout on Python's path: with setuptools' usual finder, Python started in the folder
above a checkout called ``labkit`` would take the checkout itself for the package.
"""

from __future__ import annotations

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

HAS_WHEELS = "(sys_platform == 'linux' or sys_platform == 'win32') and platform_machine in 'x86_64 AMD64'"
COMPILER = ("nvidia-cuda-nvrtc-cu12==12.8.93", "nvidia-cuda-runtime-cu12==12.8.90")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What must be installed before ``build_wheel`` is called."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *(f"{name}; {HAS_WHEELS}" for name in COMPILER)]


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """An editable install by a path file, unless the caller names another mode."""
    settings = {"editable_mode": "compat", **(config_settings or {})}
    return build_meta.build_editable(wheel_directory, settings, metadata_directory)
