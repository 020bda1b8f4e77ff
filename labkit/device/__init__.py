"""CUDA kernels from source to launch: compilation, its cache, the executors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.device.compile import Build, compile_source
    from labkit.device.executor import current_executor, executor_for, use_executor
    from labkit.device.kernel import Kernel, Out
    from labkit.device.ladder import Ladder

__all__ = [
    "Build",
    "Kernel",
    "Ladder",
    "Out",
    "compile_source",
    "current_executor",
    "executor_for",
    "use_executor",
]

# Loaded on first use: a wheel is built, and `labkit --help` printed, where there is no torch.
_HOMES = {
    "Build": "labkit.device.compile",
    "compile_source": "labkit.device.compile",
    "current_executor": "labkit.device.executor",
    "executor_for": "labkit.device.executor",
    "use_executor": "labkit.device.executor",
    "Kernel": "labkit.device.kernel",
    "Out": "labkit.device.kernel",
    "Ladder": "labkit.device.ladder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit.device' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
