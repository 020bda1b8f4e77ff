"""Everything here needs an NVIDIA GPU, torch for it, and CuPy; without them all of it is skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from helpers.cuda_sources import forget_kernels
from helpers.probe import use_probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if not torch.cuda.is_available():
        reason = "no CUDA device"
    elif importlib.util.find_spec("cupy") is None:
        reason = "no CuPy"
    here = Path(__file__).parent
    for item in items:
        if reason and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `helpers.probe.probe` work for one test."""
    use_probe(tmp_path, monkeypatch)
    forget_kernels()
