"""What ``--quantize-leftovers`` makes of a model's bytes: the matrices that the loader would pack, packed."""

from __future__ import annotations

from dataclasses import replace

from labkit.bench.fit_modules import ROWS, Module
from labkit.bench.fit_weights import WeighedModel, Weight
from labkit.errors import ConfigError
from labkit.model.leftovers import CHOICES
from labkit.quant.round_to_nearest import largest_group

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
# Bytes of a weight, and of a group: a half2, or one scale.
COSTS = {"int4": (0.5, 4), "int8": (1, 2)}


def pack_leftovers(model: WeighedModel, kind: str) -> WeighedModel:
    """``model`` after ``quantize_leftovers=kind``; a head that is tied to the embedding becomes a matrix of its own.

    Raises ConfigError for another kind.
    """
    if kind not in CHOICES:
        raise ConfigError(f"quantize_leftovers is {kind!r}.", cure=f"Choose one of {', '.join(CHOICES)}.")
    if kind == "none":
        return model
    weights = list(model.weights)
    if all(weight.module.name != HEAD for weight in weights):
        config = model.geometry.config
        head = Module(HEAD, (config.vocab_size, config.hidden_size), ROWS)
        weights.append(Weight(head, 0))  # the table already counts; a copy adds its packed bytes alone
    packed = tuple(_packed(weight, kind) for weight in weights)
    return replace(model, weights=packed, about=f"{model.about}; the rest packed to {kind}")


def _packed(weight: Weight, kind: str) -> Weight:
    """Groups are made after a matrix is divided over the ranks, so none is ever cut: they are not counted as such."""
    if weight.groups or not _is_projection(weight.module):
        return weight
    group = largest_group(weight.module.shape[-1])
    if group is None:
        return weight
    of_weight, of_group = COSTS[kind]
    return Weight(weight.module, weight.module.parameters * (of_weight + of_group / group))


def _is_projection(module: Module) -> bool:
    """Matrices but the embedding table and the short convolution; experts, whose shapes have three, stay."""
    return len(module.shape) == 2 and module.name != EMBEDDING and not module.name.endswith(".conv1d")
