"""Quantize one layer: absorb the best scales, then round each weight in the best ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.awq.observe import Inputs
from labkit.awq.rounding import quantize
from labkit.awq.scopes import Scope
from labkit.awq.search import Readers, best_scale, best_shares
from labkit.quant.int4 import Int4Weight

Weights = dict[str, Tensor | Int4Weight]
# Scores are products of q and k: an error in one is multiplied by the other, and softmax magnifies it. Cutting their
# ranges saves error on average and costs it where it counts (as in the AWQ authors' own code).
UNCLIPPED = ("self_attn.q_proj", "self_attn.k_proj")


@dataclass(frozen=True)
class LayerPlan:
    """What is done to a layer. scopes: all of them; wanted: modules that become INT4, by name within the layer; prefix:
    what makes their full names, for messages."""

    scopes: list[Scope]
    wanted: frozenset[str]
    group_size: int
    prefix: str = ""


def round_layer(tensors: Mapping[str, Tensor], plan: LayerPlan) -> Weights:
    """Round to nearest, nothing else. tensors: fp32, by name within the layer; returns the layer's tensors by name."""
    result: Weights = dict(tensors)
    for module in plan.wanted:
        result[f"{module}.weight"] = quantize(plan.prefix + module, tensors[f"{module}.weight"], plan.group_size)
    return result


def awq_layer(tensors: dict[str, Tensor], plan: LayerPlan, seen: Mapping[str, Inputs]) -> Weights:
    """Search and apply scales, search ranges, round.

    tensors: fp32, by name within the layer; they are changed. seen: the inputs of the layer's projections, by the name
    of the first module that reads them.
    """
    spreads: dict[str, Tensor] = {}
    for scope in plan.scopes:
        spreads[scope.first] = _search(tensors, plan, scope, seen[scope.first])
    result: Weights = dict(tensors)
    for scope in plan.scopes:
        for module in scope.readers:
            if module in plan.wanted:
                weight, inputs = tensors[f"{module}.weight"], seen[scope.first]
                shares = _ranges(module, weight, inputs, spreads[scope.first], plan.group_size)
                result[f"{module}.weight"] = quantize(plan.prefix + module, weight, plan.group_size, shares)
    return result


def _search(tensors: dict[str, Tensor], plan: LayerPlan, scope: Scope, inputs: Inputs) -> Tensor:
    """Scale the readers of a scope; returns what each input was divided by, fp32 [K]."""
    wanted = {module: tensors[f"{module}.weight"] for module in scope.readers if module in plan.wanted}
    if not wanted:
        return torch.ones(len(scope.tie))
    scale = best_scale(Readers(wanted, scope.tie, plan.group_size), inputs).scale
    spread = absorb(tensors, scope, scale)[scope.tie]
    for module in scope.readers:
        tensors[f"{module}.weight"].mul_(spread)
    return spread


def absorb(tensors: dict[str, Tensor], scope: Scope, scale: Tensor) -> Tensor:
    """Divide what makes the input by ``scale`` [B]. Returns what it was in fact divided by, [B].

    A norm's weight is written in half precision. The scale is what that rounding makes of it, so that the product of
    norm and projection loses nothing.
    """
    old = tensors[scope.absorber]
    if old.ndim == 2:
        tensors[scope.absorber] = old / scale[:, None]
        return scale
    one = 1.0 if scope.zero_centered else 0.0
    new = ((old + one) / scale - one).half().float()
    usable = ((new + one) != 0) & new.isfinite()
    tensors[scope.absorber] = torch.where(usable, new, old)
    return torch.where(usable, (old + one) / (new + one), torch.ones_like(scale))


def _ranges(module: str, weight: Tensor, inputs: Inputs, spread: Tensor, group_size: int) -> Tensor | float:
    if module in UNCLIPPED:
        return 1.0
    assert inputs.gram is not None
    inverse = (1 / spread).view(-1, group_size)
    return best_shares(weight, inputs.gram * inverse[:, :, None] * inverse[:, None, :], group_size)
