"""``quantization_config`` of config.json: the packing of the words, and the settings that hold for one module.

Sources: AutoAWQ; GPTQModel (``dynamic``: regular expressions from the name's start, the first that matches counts,
``-:`` excludes); AutoRound (``extra_config``: exact names before patterns; ``packing_format``, in older files
``backend``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from labkit.errors import CheckpointError, UnsupportedModelError
from labkit.model.checkpoint.base import section

CURE = (
    "Use a checkpoint with 4-bit weights in AutoAWQ's gemm format, GPTQ, AutoRound, "
    "or compressed-tensors' pack-quantized."
)
CONFIG_AGAIN = "Fetch config.json again; it must be from the same revision as the weights."
AUTO_ROUND = ("auto-round", "intel/auto-round")

Packing = Literal["awq", "gptq"]
Settings = Mapping[str, Any]
Names = tuple[str, ...]  # a module's spellings

# What follows "auto_round" in AutoRound's packing_format; with none, zero points are stored as they are.
AUTO_ROUND_PACKINGS: Mapping[str | None, Packing] = {
    "": "gptq",
    "auto_gptq": "gptq",
    "gptq": "gptq",
    "auto_awq": "awq",
    "awq": "awq",
}
PATTERN = re.compile(r"[*+?^$()\[\]{}|\\]")


def quant_section(config: Mapping[str, Any]) -> Settings:
    """The quantization settings, {} if there are none; the outer config counts before the text config."""
    return section(config, "quantization_config") or section(section(config, "text_config"), "quantization_config")


def method_of(quant: Settings) -> str:
    """``quant_method`` in small letters."""
    return str(quant.get("quant_method", "unknown")).lower()


def refuse(module: str, what: str) -> UnsupportedModelError:
    """The error for a sound module in a format that labkit does not read; ``what`` names it."""
    return UnsupportedModelError(f"{module} is quantized in a format that is not supported: {what}.", cure=CURE)


def words_packing(quant: Settings, module: str) -> Packing:
    """How the module's ``qweight`` is packed: as AutoAWQ or as GPTQ does. Raises UnsupportedModelError for others."""
    match method_of(quant):
        case "awq":
            return "awq"
        case "gptq":
            return "gptq"
        case method if method not in AUTO_ROUND:
            raise refuse(module, f"method {method}")
    suffix = auto_round_suffix(quant)
    if suffix not in AUTO_ROUND_PACKINGS:
        raise refuse(module, f"method {method}, packing format {_auto_round_format(quant)}")
    return AUTO_ROUND_PACKINGS[suffix]


def auto_round_suffix(quant: Settings) -> str | None:
    """``auto_gptq`` of ``auto_round:auto_gptq``; "" if there is none; None if it is not AutoRound's."""
    head, _, rest = _auto_round_format(quant).partition(":")
    return rest.partition(":")[0] if head in ("auto_round", "auto-round") else None


def _auto_round_format(quant: Settings) -> str:
    return str(quant.get("packing_format") or quant.get("backend") or "unknown").lower()


def module_settings(quant: Settings, names: Names) -> Settings:
    """The config's settings with those of the module's own rule, if there is one, laid over them."""
    method = method_of(quant)
    if method == "gptq":
        return {**quant, **_gptq_rule(section(quant, "dynamic"), names)}
    if method in AUTO_ROUND:
        return {**quant, **_auto_round_rule(section(quant, "extra_config"), names)}
    return quant


def _gptq_rule(rules: Settings, names: Names) -> Settings:
    for pattern in rules:
        excludes = pattern.startswith("-:")
        if matches(pattern.removeprefix("-:").removeprefix("+:"), names):
            return {} if excludes else section(rules, pattern)  # excluded, yet packed in the file: the file counts
    return {}


def _auto_round_rule(rules: Settings, names: Names) -> Settings:
    for name in names:
        if name in rules:
            return section(rules, name)
    for pattern in filter(PATTERN.search, rules):
        if any(_regex(pattern).search(name) for name in names):
            return section(rules, pattern)
    return {}


def matches(pattern: str, names: Names) -> bool:
    """Whether the regular expression fits one of the names from its start. Raises CheckpointError if it is none."""
    return any(_regex(pattern).match(name) for name in names)


def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        message = f"quantization_config in config.json holds {pattern!r}, which is no regular expression ({error})."
        raise CheckpointError(message, cure=CONFIG_AGAIN) from error


def group_size_of(settings: Settings, *keys: str) -> int | None:
    """The first of ``keys`` that is set: inputs in a group, -1 for all of a row; None if none is.

    Raises CheckpointError if it is no whole number.
    """
    size = next((settings[key] for key in keys if settings.get(key) is not None), None)
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise CheckpointError(f"config.json gives the group size {size!r}.", cure=CONFIG_AGAIN)
    return size


def check_bits(module: str, settings: Settings, *keys: str) -> None:
    """Raises UnsupportedModelError unless the first of ``keys`` that is set says 4 bits of an integer."""
    bits = next((settings[key] for key in keys if settings.get(key) is not None), 4)
    kind = settings.get("data_type") or "int"
    if bits not in (4, "4"):
        raise refuse(module, f"method {method_of(settings)}, {bits} bits")
    if kind != "int":
        raise refuse(module, f"method {method_of(settings)}, data type {kind}")
