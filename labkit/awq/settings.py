"""What a quantization run is asked to do, checked when it is said."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from labkit.errors import ConfigError

METHODS = ("awq", "rtn")
FORMATS = ("awq", "compressed-tensors")
GROUP_SIZES = (32, 64, 128)
# The projections of Gated DeltaNet that make its gates: a few rows each, and the whole state hangs on them.
ALWAYS_SKIPPED = (r"linear_attn\.in_proj_[ab]",)


@dataclass(frozen=True)
class QuantizeSettings:
    """How to quantize.

    group_size: inputs that share a scale. format: of the written files. method: "awq" searches scales and clipping
    on calibration text; "rtn" rounds to nearest, for comparison. skip: parts of module names, as regular
    expressions, that stay 16-bit. windows, window: how much calibration text is read, windows of so many tokens.

    Raises ConfigError for values that are impossible.
    """

    group_size: int = 128
    format: str = "awq"
    method: str = "awq"
    skip: tuple[str, ...] = ()
    windows: int = 16
    window: int = 512

    def __post_init__(self) -> None:
        _one_of("group_size", self.group_size, GROUP_SIZES)
        _one_of("format", self.format, FORMATS)
        _one_of("method", self.method, METHODS)
        for name in ("windows", "window"):
            value, least = getattr(self, name), 2 if name == "window" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}.", cure=f"Give a whole number from {least}.")
        for pattern in self.skip:
            _check_pattern(pattern)

    def skips(self, module: str) -> bool:
        """Whether a module is to stay 16-bit whatever its shape."""
        return any(re.search(pattern, module) for pattern in (*ALWAYS_SKIPPED, *self.skip))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}.", cure=f"Choose one of {', '.join(map(str, allowed))}.")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        cure = r"Give part of a module's name, such as 'self_attn' or 'layers\.0\.'."
        raise ConfigError(f"--skip {pattern!r} is no regular expression ({error}).", cure=cure) from error
    if not pattern:
        raise ConfigError("--skip is empty: it would skip every module.", cure="Give part of a module's name.")
