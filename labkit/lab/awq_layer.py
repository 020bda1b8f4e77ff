"""One layer of a real model, seen as the AWQ quantizer sees it: its weights, its inputs, its scopes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.awq.calibration import calibration_ids, read_text
from labkit.awq.observe import Inputs, LayerRunner, watch
from labkit.awq.rounding import rounded
from labkit.awq.scopes import Scope, scopes_of
from labkit.awq.search import Readers
from labkit.awq.source import DenseSource
from labkit.model.checkpoint.tied import EMBEDDING
from labkit.model.resolve import resolve_model


@dataclass(frozen=True)
class LayerView:
    """tensors: fp32 by name within the layer; inputs: by the first module that reads them; scopes by the same name."""

    tensors: dict[str, Tensor]
    inputs: dict[str, Inputs]
    scopes: dict[str, Scope]
    group_size: int

    def weight(self, module: str) -> Tensor:
        """The weight [N, K] of a module."""
        return self.tensors[f"{module}.weight"]

    def readers(self, first: str, *, only: str | None = None) -> Readers:
        """What reads the input of ``first``, as the scale search takes it, or one of them alone."""
        scope = self.scopes[first]
        names = [only] if only else list(scope.readers)
        return Readers({name: self.weight(name) for name in names}, scope.tie, self.group_size)


@torch.inference_mode()
def look_at_layer(model: str, layer: int, *, group_size: int = 128, windows: int = 4, window: int = 256) -> LayerView:
    """Run the model's first layers on the calibration text and look at one of them.

    Raises what ``resolve_model`` and ``DenseSource`` raise, and IndexError for a layer that is not there.
    """
    source = DenseSource(resolve_model(model))
    config = source.model_config
    if not 0 <= layer < config.num_hidden_layers:
        raise IndexError(f"{model} has the layers 0 to {config.num_hidden_layers - 1}, not {layer}")
    ids = calibration_ids(source, read_text(None), windows, window)
    hidden, runner = source.tensor(EMBEDDING)[ids].float(), LayerRunner(config, window)
    inputs: dict[str, Inputs] = {}
    for number in range(layer + 1):
        built = source.layer(number)
        if number == layer:
            inputs = watch(built, group_size, step=2)
        hidden = torch.stack([runner.run(built, number, one) for one in hidden])
    scopes = {scope.first: scope for scope in scopes_of(config, layer)}
    return LayerView(source.layer_tensors(layer), inputs, scopes, group_size)


def output_error(weight: Tensor, changed: Tensor, rows: Tensor) -> float:
    """|| rows changed^T - rows weight^T || / || rows weight^T ||: how far the outputs move."""
    exact = rows @ weight.T
    return float((rows @ changed.T - exact).norm() / exact.norm())


def rounded_except(weight: Tensor, group_size: int, channels: list[int]) -> Tensor:
    """Rounded to nearest, with some inputs left as they are: AWQ's first experiment."""
    result = rounded(weight, group_size)
    result[:, channels] = weight[:, channels]
    return result
