"""What sparse prefill may leave out, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import ConfigError

THRESHOLD = 8192  # tokens of context below which prefill is dense


@dataclass(frozen=True)
class SparseSettings:
    """Which pages of 64 tokens a tile of queries keeps, for each query head.

    mass: share of the estimated attention that the kept pages hold together, over 0 and up to 1; 1 keeps every page.
    sink: first pages of the sequence that are always kept. recent: pages before the tile's own that always are.
    needle: a page to which any row of the tile pays this share of its own attention, as estimated, is kept whatever the
    others pay; 1 or less.
    threshold: a tile whose last row has fewer tokens of context, itself among them, attends to everything.
    most: pages that a head keeps at most, its own rows' pages not counted; None: as many as the mass takes. Sink and
    recent pages come first.

    Keys and values that sparse attention leads to differ from those of dense attention in every layer above the first:
    these settings are part of whatever names stored pages (the key of a prefix cache).

    Raises ConfigError for values out of range.
    """

    mass: float = 0.95
    sink: int = 1
    recent: int = 4
    threshold: int = THRESHOLD
    needle: float = 0.1
    most: int | None = None

    def __post_init__(self) -> None:
        for name in ("mass", "needle"):
            _share(name, getattr(self, name))
        for name, least in (("sink", 0), ("recent", 0), ("threshold", 1)):
            _count(name, getattr(self, name), least)
        if self.most is not None:
            _count("most", self.most, 1)


def _share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ConfigError(f"sparse_{name} is {value!r}.", cure="Give a share over 0 and up to 1, such as 0.9.")


def _count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"sparse_{name} is {value!r}.", cure=f"Give a whole number from {least}.")
