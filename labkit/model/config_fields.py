"""Reading single fields of a ``config.json``: each has one type, and a wrong one is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from labkit.errors import CheckpointError, UnsupportedModelError


def size_of(
    text: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
) -> int:
    value = text.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise broken_field(name, value, f"a whole number from {least} to {most}")
    return value


def float_of(values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = values.get(name)
    value = default if value is None else value
    # The upper bound also keeps out infinity, NaN and whole numbers that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise broken_field(name, value, "a finite number above 0")
    return float(value)


def object_of(text: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A nested object without its nulls, which mean the same as absent keys; {} if it is itself null or absent."""
    value = text.get(name)
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise broken_field(name, value, "a JSON object")
    return {key: entry for key, entry in value.items() if entry is not None}


def token_ids_of(text: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = text.get(name)
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise broken_field(name, value, "a token id or a list of them")
    return tuple(ids)


def require(text: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> None:
    value = text.get(name)
    if value is not None and value not in allowed:
        raise UnsupportedModelError(
            f"config.json has {name} = {value!r}.", cure=f"labkit supports {name} in {list(allowed)} only."
        )


def broken_field(name: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"config.json has {name} = {value!r}.", cure=f"It must be {expected}; download it again.")
