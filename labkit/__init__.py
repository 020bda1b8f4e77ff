"""labkit: learn, measure and serve large language models on the NVIDIA V100, kernel by kernel."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.engine.config import EngineConfig
    from labkit.engine.llm import LLM
    from labkit.engine.outputs import RequestOutput
    from labkit.engine.sampling_params import SamplingParams
    from labkit.lab.doctor import diagnose as doctor

__version__ = "0.4.0"
__all__ = ["LLM", "EngineConfig", "RequestOutput", "SamplingParams", "__version__", "doctor"]

# Loaded on first use: `labkit --help` and the plain-Python scheduler need no torch.
_HOMES = {
    "LLM": ("labkit.engine.llm", "LLM"),
    "EngineConfig": ("labkit.engine.config", "EngineConfig"),
    "RequestOutput": ("labkit.engine.outputs", "RequestOutput"),
    "SamplingParams": ("labkit.engine.sampling_params", "SamplingParams"),
    "doctor": ("labkit.lab.doctor", "diagnose"),
}
_PACKAGES = ("sim",)  # reached as labkit.sim.run(...) after `import labkit`


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"labkit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
