"""A scale moves through the model without changing it: for every scope of every architecture, on random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import llama, qwen35, saved

from labkit.awq.layer import absorb
from labkit.awq.observe import LayerRunner
from labkit.awq.scopes import Scope, scopes_of
from labkit.awq.source import DenseSource

TOKENS = 70
MODELS: list[tuple[Any, dict[str, Any]]] = [
    (llama, {}),
    (llama, {"num_key_value_heads": 1}),
    (llama, {"num_key_value_heads": 4}),
    (qwen35, {}),
    (qwen35, {"num_key_value_heads": 1, "linear_num_key_heads": 1}),
]


class Changed(DenseSource):
    """The source with some tensors of one layer replaced."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.replaced: dict[str, torch.Tensor] = {}

    def tensor(self, name: str, *, rows: slice | None = None) -> torch.Tensor:
        return self.replaced.get(name, super().tensor(name, rows=rows))

    def linear(self, module: str, *, rows: slice | None = None, cols: slice | None = None) -> torch.Tensor:
        return self.replaced.get(f"{module}.weight", super().linear(module, rows=rows, cols=cols))


def _output(source: Changed, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    runner = LayerRunner(source.model_config, TOKENS)
    return runner.run(source.layer(layer), layer, hidden)


@pytest.mark.parametrize(("make", "changes"), MODELS)
def test_a_scale_changes_nothing(seed: int, tmp_path: Path, make: Any, changes: dict[str, Any]) -> None:
    source = Changed(saved(make(**changes), tmp_path))
    hidden = torch.randn(TOKENS, source.model_config.hidden_size)
    for layer in {kind: i for i, kind in enumerate(source.model_config.layer_types)}.values():
        source.replaced = {}
        before = _output(source, layer, hidden)
        for scope in scopes_of(source.model_config, layer):
            tensors = source.layer_tensors(layer)
            assert _scaled(tensors, scope).max() > 2
            source.replaced = {f"model.layers.{layer}.{name}": tensor for name, tensor in tensors.items()}
            after = _output(source, layer, hidden)
            assert torch.allclose(after, before, rtol=1e-4, atol=1e-4), scope.readers


def _scaled(tensors: dict[str, torch.Tensor], scope: Scope) -> torch.Tensor:
    """Scale a scope by random numbers; returns them."""
    scale = torch.rand(int(scope.tie.max()) + 1) * 4 + 0.25
    spread = absorb(tensors, scope, scale)
    for module in scope.readers:
        tensors[f"{module}.weight"].mul_(spread[scope.tie])
    return spread


@pytest.mark.parametrize(("make", "changes"), MODELS)
def test_every_matrix_of_a_layer_is_in_one_scope(seed: int, tmp_path: Path, make: Any, changes: dict[str, Any]) -> None:
    source = DenseSource(saved(make(**changes), tmp_path))
    for layer in range(source.model_config.num_hidden_layers):
        tensors = source.layer_tensors(layer)
        readers = [item for scope in scopes_of(source.model_config, layer) for item in scope.readers.items()]
        assert len(dict(readers)) == len(readers)
        shapes = {name: len(tensors[f"{name}.weight"]) for name, _ in readers}
        assert shapes == dict(readers)
        matrices = {name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.ndim == 2}
        assert matrices == set(shapes)


def test_a_norm_weight_is_divided_as_half_precision_holds_it(seed: int) -> None:
    scope = Scope({"p": 4}, "norm.weight", torch.arange(64), True)
    old = torch.randn(64)
    old[3] = -1  # 1 + w is 0: nothing to divide
    tensors = {"norm.weight": old}
    scale = absorb(tensors, scope, torch.rand(64) + 0.5)
    new = tensors["norm.weight"]
    assert torch.equal(new.half().float()[4:], new[4:])
    assert torch.allclose((1 + new) * scale, 1 + old, rtol=1e-6, atol=0)
    assert scale[3] == 1 and new[3] == -1
