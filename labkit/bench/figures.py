"""How a benchmark's figures are written, on a terminal and on the pages of docs/."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NONE = "-"  # not measured


def kernels_of(rows: Iterable[Mapping[str, Any]], figures: str = "microseconds") -> list[str]:
    """Every kernel that has figures of this name in some row, in order of appearance."""
    return list(dict.fromkeys(kernel for row in rows for kernel in row[figures]))


def figure(value: float | None, decimals: int = 1) -> str:
    """With commas for thousands."""
    return NONE if value is None else f"{value:,.{decimals}f}"


def percent(share: float | None) -> str:
    """Of a share of 1."""
    return NONE if share is None else f"{share:.0%}"
