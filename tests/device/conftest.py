"""A cache of its own for each test, and nothing remembered from the one before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cuda_sources import forget_kernels, use_operations


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled kernels are kept; empty at first."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sources with the operation ``scale`` instead of cuda/."""
    monkeypatch.delenv("LABKIT_KERNEL_DIR", raising=False)
    yield use_operations(tmp_path / "cuda", monkeypatch)
    forget_kernels()
