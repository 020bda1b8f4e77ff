"""compressed-tensors' settings: which group of the config a module belongs to, and whether labkit reads its scheme.

    config_groups: {name: {targets: [...], weights: {...}, input_activations, output_activations, format}}

A target is a module's name, a pattern ``re:...`` that must fit the name from its start, or a class; names count before
patterns, patterns before classes. ``ignore`` needs no look: what was left out has a plain ``weight`` in the file.
Source: the library compressed-tensors (quantization/quant_config.py, utils/match.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import CheckpointError
from labkit.model.checkpoint.base import section
from labkit.model.checkpoint.quant_config import (
    CONFIG_AGAIN,
    Names,
    Settings,
    group_size_of,
    matches,
    method_of,
    quant_section,
    refuse,
)
from labkit.model.checkpoint.report import LoadReport
from labkit.model.checkpoint.shards import Entry

FORMAT = "pack-quantized"
KV_FIELDS = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "output_scale")
LINEAR = "Linear"  # the class of every packed module


@dataclass(frozen=True)
class Scheme:
    """How a module is packed. needs_order: it was quantized with act-order by group."""

    group_size: int
    symmetric: bool
    needs_order: bool


def scheme_of(quant: Settings, module: str, names: Names) -> Scheme:
    """The module's scheme. names: its spellings.

    Raises UnsupportedModelError for what is not 4-bit integers in groups, CheckpointError for a config that says
    nothing about the module.
    """
    if method_of(quant) != "compressed-tensors":
        raise refuse(module, f"method {method_of(quant)} with compressed-tensors' weight_packed")
    group = _find_group(section(quant, "config_groups"), module, names)
    kind = group.get("format") or quant.get("format") or "unknown"
    if kind != FORMAT:
        raise refuse(module, f"compressed-tensors, format {kind}")
    _refuse_more_than_weights(quant, group, module)
    return _weight_scheme(section(group, "weights"), module)


def _find_group(groups: Settings, module: str, names: Names) -> Settings:
    """The group with the target that names the module most closely; of several such patterns, the alphabet's first."""
    targets = [(target, section(groups, name)) for name in groups for target in _targets(section(groups, name))]
    found = [(rank, target, group) for target, group in targets if (rank := _rank(target, names)) is not None]
    if not found:
        raise CheckpointError(
            f"{module} is packed, but no group of quantization_config in config.json has it among its targets.",
            cure=CONFIG_AGAIN,
        )
    return min(found, key=lambda item: item[:2])[2]


def _targets(group: Settings) -> list[str]:
    targets = group.get("targets") or []
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise CheckpointError("targets in quantization_config is no list of names.", cure=CONFIG_AGAIN)
    return targets


def _rank(target: str, names: Names) -> int | None:
    """0 for the name itself, 1 for a pattern that fits, 2 for the class, None for neither."""
    if target in names:
        return 0
    if target.startswith("re:"):
        return 1 if matches(target.removeprefix("re:"), names) else None
    return 2 if target == LINEAR else None


def _refuse_more_than_weights(quant: Settings, group: Settings, module: str) -> None:
    """Refuse what would change the answers besides 4-bit weights."""
    for key in ("input_activations", "output_activations"):
        if group.get(key):
            raise refuse(module, f"compressed-tensors with quantized {key.replace('_', ' ')}")
    if quant.get("transform_config"):
        raise refuse(module, "compressed-tensors with a transform_config (rotations)")
    sparsity = section(quant, "sparsity_config").get("format", "dense")
    if sparsity != "dense":
        raise refuse(module, f"compressed-tensors with the sparsity format {sparsity}")


def _weight_scheme(weights: Settings, module: str) -> Scheme:
    for key, only in (("num_bits", 4), ("type", "int"), ("strategy", "group"), ("dynamic", False)):
        value = weights.get(key, only if key in ("type", "dynamic") else None)
        if value != only:
            raise refuse(module, f"compressed-tensors with {key} {value}")
    size, symmetric = group_size_of(weights, "group_size"), weights.get("symmetric", True)
    if size is None or size <= 0 or not isinstance(symmetric, bool):
        raise CheckpointError(
            f"quantization_config in config.json gives {module} the group size {size} and symmetric {symmetric}.",
            cure=CONFIG_AGAIN,
        )
    return Scheme(size, symmetric, needs_order=weights.get("actorder") in (True, "group", "dynamic"))


def without_kv_scales(entries: dict[str, Entry], config: Mapping[str, Any], report: LoadReport) -> dict[str, Entry]:
    """``entries`` without the scales of a KV cache that the checkpoint would like quantized; the report says so."""
    scheme = quant_section(config).get("kv_cache_scheme")
    if not scheme:
        return entries
    kept = {name: entry for name, entry in entries.items() if not _is_kv_scale(name)}
    report.note(
        f"kv_cache_scheme in config.json and its {len(entries) - len(kept)} scales are ignored: "
        "--kv-cache-dtype says how the KV cache is kept."
    )
    return kept


def _is_kv_scale(name: str) -> bool:
    module, _, field = name.rpartition(".")
    return field in KV_FIELDS and ".self_attn" in module
