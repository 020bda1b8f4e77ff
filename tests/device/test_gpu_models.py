"""The models of tests/gpu: which kernels they launch, and so which are compiled for them, is no matter of luck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import gpu_models
from helpers.gpu_models import MODELS, quantized_model, random_model
from safetensors.torch import load_file

from labkit.model.checkpoint import LoadReport, to_half_checked

TOO_SMALL = 1e-9  # for a half


def unlucky(make: Callable[..., Any]) -> Callable[..., Any]:
    """Models with an entry next to 0 in every matrix."""

    def drawn(**settings: Any) -> Any:
        model = make(**settings)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.view(-1)[3] = TOO_SMALL
        return model

    return drawn


def assert_half(folder: Path) -> None:
    """All matrices are used in halves."""
    [file], report = folder.glob("*.safetensors"), LoadReport()
    tensors = load_file(file)
    matrices = {name: x for name, x in tensors.items() if x.ndim > 1 and x.is_floating_point()}
    assert any(x.dtype == torch.float32 for x in matrices.values()), "a file of halves says nothing"
    for name, matrix in matrices.items():
        to_half_checked(name, matrix, report)
    assert not report.ranges


@pytest.mark.parametrize("name", MODELS)
def test_random_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    make, settings = MODELS[name]
    monkeypatch.setitem(MODELS, name, (unlucky(make), settings))
    assert_half(random_model(name, tmp_path))


def test_a_quantized_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(gpu_models, "llama", unlucky(gpu_models.llama))
    assert_half(quantized_model(32, tmp_path))
