"""What is asked of ``fit`` and what it answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from labkit.errors import ConfigError
from labkit.quant.kv import BITS

GIB = 2**30
KV_CACHE_DTYPES = tuple(name for name in BITS if name != "auto")  # on a GPU, auto is fp16
PACKINGS = ("file", "labkit")


@dataclass(frozen=True)
class FitRequest:
    """What is asked, and what is assumed about a GPU.

    gpus: ranks of the tensor-parallel group. gpu_memory_gib: of each card, of which the driver and fragmentation
    take reserved_gib, and CUDA context, NCCL and workspaces overhead_gib. slots: sequences that run at once, each with
    its recurrent state. context: tokens of KV wanted in all, None for any. packing: INT4 weights as in the "file", or
    in "labkit"'s format, which keeps four bytes for each group.
    """

    gpus: int = 1
    gpu_memory_gib: float = 16
    kv_cache_dtype: str = "fp16"
    context: int | None = None
    slots: int = 8
    mtp: bool = False
    packing: str = "file"
    reserved_gib: float = 0.5
    overhead_gib: float = 1.0

    def __post_init__(self) -> None:
        for name in ("gpus", "slots", *(["context"] if self.context is not None else [])):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}.", cure="It must be a whole number above 0.")
        for name in ("gpu_memory_gib", "reserved_gib", "overhead_gib"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value!r}.", cure="It must be a number of GiB, 0 or more.")
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _one_of("packing", self.packing, PACKINGS)

    @property
    def usable_bytes(self) -> int:
        """Per GPU."""
        return int((self.gpu_memory_gib - self.reserved_gib) * GIB)

    @property
    def overhead_bytes(self) -> int:
        """Per GPU."""
        return int(self.overhead_gib * GIB)


@dataclass(frozen=True)
class FitReport:
    """The budget of one GPU, in bytes; ``max_tokens`` of KV are shared by all running sequences.

    ``labkit_packing_bytes`` is what labkit's INT4 format takes beyond the file's (0 under ``packing="labkit"``, where
    ``weight_bytes`` has it). ``fits`` is a verdict on the budget; ``reason`` says why not and what would help.
    """

    model: str
    weights: str
    request: FitRequest
    parameters: int
    weight_bytes: int
    labkit_packing_bytes: int
    mtp_bytes: int
    state_bytes: int
    state_bytes_per_sequence: int
    kv_bytes_left: int
    kv_bytes_per_token: int
    max_tokens: int
    max_position: int
    fits: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; the request's fields stand under ``request``."""
        budget = {"usable_bytes": self.request.usable_bytes, "overhead_bytes": self.request.overhead_bytes}
        return {"origin": "modelled", **asdict(self), **budget}

    def render(self) -> Table:
        """The budget as a rich table, one line a term."""
        verdict = "fits" if self.fits else "does not fit"
        title = f"{self.model} ({self.weights}), {self.request.gpus} GPU(s): {verdict}"
        table = Table(title=Text(title), caption=Text(self.reason))  # Text: a name may hold what looks like markup
        table.add_column("per GPU")
        table.add_column("", justify="right")
        for label, value in self._lines():
            table.add_row(label, value)
        return table

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "usable memory", _gib(self.request.usable_bytes)
        yield "context, NCCL, workspaces", _gib(-self.request.overhead_bytes)
        yield "weights", _gib(-self.weight_bytes)
        if self.labkit_packing_bytes:
            yield "  (not counted: labkit's INT4 packing adds)", _gib(self.labkit_packing_bytes)
        yield "MTP block", _gib(-self.mtp_bytes)
        yield f"recurrent states of {self.request.slots} sequences", _gib(-self.state_bytes)
        yield "left for KV pages", _gib(self.kv_bytes_left)
        yield f"KV bytes per token ({self.request.kv_cache_dtype})", f"{self.kv_bytes_per_token:,}"
        yield "tokens of KV", f"{self.max_tokens:,}"


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}.", cure=f"Use one of: {', '.join(allowed)}.")


def _gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"
