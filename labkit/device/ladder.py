"""What a kernel ladder offers: an operation, its rungs, and the macro sets with which they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Macros = Mapping[str, int | float | str]


def _needs_none(config: Any, tp_size: int, kv_cache_dtype: str) -> tuple[Macros, ...]:
    return ()


@dataclass(frozen=True)
class Ladder:
    """One folder of ``cuda/``: every rung is a file that defines the same entries and takes the same macros.

    ``specialisations(config, tp_size, kv_cache_dtype)`` names the macro sets that one rank of a model needs: a model
    configuration of ``labkit.model.config``, the number of tensor-parallel ranks, and the KV dtype of the command line
    ("auto", "fp16", "int8", ...). Models that do not use the operation need none.
    """

    op: str
    rungs: tuple[str, ...]  # file names without ".cu", slowest first; the last one ships
    entries: tuple[str, ...]  # extern "C" names
    # Built, listed and carried by a wheel: each of them, with each rung.
    default_macros: tuple[Macros, ...] = ({},)
    specialisations: Callable[[Any, int, str], Sequence[Macros]] = _needs_none
    also: tuple[str, ...] = ()  # rungs beside the last that run for some shapes without being asked for

    @property
    def shipped(self) -> str:
        """The rung that runs unless another is asked for, or the shape wants one of ``also``."""
        return self.rungs[-1]

    @property
    def in_use(self) -> tuple[str, ...]:
        """All rungs that run without being asked for."""
        return (*self.also, self.shipped)
