"""The list of operations without kernels is complete, and what gets a kernel has to leave it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import labkit.model
from labkit.ops.ladders import LADDERS
from labkit.ops.torch_ops import NOT_COUNTED, WITHOUT_KERNELS

MODEL = Path(str(labkit.model.__file__)).parent
LISTED = {name: op for op, entry in WITHOUT_KERNELS.items() for name in entry.functions}


def function(name: str) -> Callable[..., Any]:
    """Of "module.function" in labkit.ops."""
    module, _, attribute = name.partition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"labkit.ops.{module}"), attribute)
    return found


def has_kernels(name: str) -> bool:
    """An operation with kernels has a ladder, and lets its callers choose a rung."""
    return name.partition(".")[0] in LADDERS and "rung" in inspect.signature(function(name)).parameters


def used_names(source: str) -> Iterator[str]:
    """What a module uses of labkit.ops, as "module.name"."""
    tree = ast.parse(source)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "labkit.ops":
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labkit.ops."):
            yield from (f"{str(node.module).removeprefix('labkit.ops.')}.{alias.name}" for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{node.value.id}.{node.attr}"


def functions_of_models() -> set[str]:
    """Functions of labkit.ops that model code uses."""
    names = {name for path in MODEL.glob("*.py") for name in used_names(path.read_text(encoding="utf-8"))}
    return {name for name in names if inspect.isfunction(function(name))}


def test_every_operation_of_a_model_has_kernels_or_is_listed() -> None:
    used = functions_of_models()
    assert {
        "rmsnorm.rmsnorm",
        "silu_mul.silu_mul",
        "gdn_decode.gdn_decode",
    } <= used  # the search finds both ways to import
    unlisted = {name for name in used if not has_kernels(name)} - LISTED.keys() - NOT_COUNTED.keys()
    assert not unlisted, f"{sorted(unlisted)} run in torch everywhere: list them in labkit/ops/torch_ops.py"


def test_what_has_kernels_is_not_listed() -> None:
    listed = {name for name in LISTED if has_kernels(name)}
    assert not listed, f"{sorted(listed)} have kernels: take them out of labkit/ops/torch_ops.py"
    assert not WITHOUT_KERNELS.keys() & LADDERS.keys()


def test_nothing_is_listed_that_no_model_uses() -> None:
    assert functions_of_models() >= LISTED.keys() | NOT_COUNTED.keys()
    assert all(entry.functions and entry.reason for entry in WITHOUT_KERNELS.values()) and all(NOT_COUNTED.values())
    assert not LISTED.keys() & NOT_COUNTED.keys()
