"""What ``labkit bench gdn`` measures: whose heads, how many rows, and what a call must move and multiply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from labkit.errors import ConfigError
from labkit.model.config import Qwen35Config, parse_config
from labkit.model.named import NAMED_CONFIGS
from labkit.model.resolve import resolve_model
from labkit.ops.layout import CHUNK

PARTS = ("conv", "decode", "prefill", "norm")
GEOMETRIES = ("27b-tp2", "27b", "labkit-tiny")
BATCHES = (1, 8, 64)  # sequences with a row each
ROWS = (4096,)  # of one sequence, beside those batches
PROMPTS = ((1, 1024), (1, 4096), (8, 512))  # sequences, tokens of each
LATER = 4096  # where a sequence stands that decodes: any position but the first
HALF, SINGLE = 2, 4  # bytes


@dataclass(frozen=True)
class Geometry:
    """Gated DeltaNet of one layer on one GPU: heads, their elements, inputs of the convolution."""

    name: str
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int

    @property
    def values(self) -> int:
        """Elements of v in a row, as of z and of the result."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Elements of q, k and v in a row."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def state(self) -> int:
        """Elements of a sequence's state."""
        return self.key_dim * self.values

    @property
    def history(self) -> int:
        """Elements of a sequence's inputs that the convolution keeps."""
        return (self.width - 1) * self.channels


@dataclass(frozen=True)
class Case:
    """One operation over ``sequences`` of ``tokens`` rows each (to the norm all rows are alike)."""

    part: str
    geometry: Geometry
    sequences: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.part} {self.geometry.name}, {self.sequences} x {self.tokens:,} tokens"

    @property
    def rows(self) -> int:
        return self.sequences * self.tokens

    @property
    def start(self) -> int:
        """The position of the first row: prompts begin, single rows go on."""
        return 0 if self.tokens > 1 else LATER

    @property
    def moved_bytes(self) -> int:
        """What one call must read and write, everything once: activations, parameters, histories and states."""
        return _BYTES[self.part](self)

    @property
    def flop(self) -> int:
        """Of the delta rule's chunked form, two for a multiplication and addition; products alone, for each value head.

        A chunk of L rows (64, fewer in the last one) multiplies, with dk and dv elements in a row of K and V:
            K K^T below the diagonal, for A                     L (L - 1) dk
            (I + A)^-1 [beta V | beta e^G K], by substitution   L (L - 1) (dk + dv)
            Q K^T up to the diagonal, for P                     L (L + 1) dk
            W S and Q S                                         4 L dk dv
            P V'                                                L (L + 1) dv
            K^T V', for the next state                          2 L dk dv
        No chunk is spared S because it is the first, and no head products that it has in common with others.
        """
        dk, dv = self.geometry.key_dim, self.geometry.value_dim
        chunks = (min(CHUNK, self.tokens - first) for first in range(0, self.tokens, CHUNK))
        each = sum(
            rows * (rows - 1) * (2 * dk + dv) + rows * (rows + 1) * (dk + dv) + 6 * rows * dk * dv for rows in chunks
        )
        return self.sequences * self.geometry.value_heads * each

    @property
    def passes(self) -> int:
        """How often a history or a state is moved: written, and read unless the sequence begins here."""
        return self.sequences * (2 if self.start else 1)


def _conv(case: Case) -> int:
    """Inputs and outputs, histories, weights."""
    g = case.geometry
    return HALF * (2 * case.rows * g.channels + case.passes * g.history) + SINGLE * g.width * g.channels


def _decode(case: Case) -> int:
    """q | k | v, z, b, a and the result; states; a_log, dt_bias and the norm's weight."""
    g = case.geometry
    rows = HALF * case.rows * (g.channels + 2 * g.values + 2 * g.value_heads)
    return rows + SINGLE * (case.passes * g.state + 2 * g.value_heads + g.value_dim)


def _prefill(case: Case) -> int:
    """q | k | v, b, a and the result, which is fp32; states; a_log and dt_bias."""
    g = case.geometry
    rows = case.rows * (HALF * (g.channels + 2 * g.value_heads) + SINGLE * g.values)
    return rows + SINGLE * (case.passes * g.state + 2 * g.value_heads)


def _norm(case: Case) -> int:
    """x, which is fp32, the gate and the result; the weight."""
    return (SINGLE + 2 * HALF) * case.rows * case.geometry.values + SINGLE * case.geometry.value_dim


_BYTES: Mapping[str, Callable[[Case], int]] = {"conv": _conv, "decode": _decode, "prefill": _prefill, "norm": _norm}


def gdn_cases(
    parts: Iterable[str],
    geometries: Sequence[str],
    batches: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> list[Case]:
    """Batches of single rows, and ``tokens`` of one sequence, as far as a part has them; None for the usual ones.

    Raises ConfigError for sizes that cannot be measured and names that are not known.
    """
    for name, counts in (("batch", batches), ("prompt", tokens)):
        for count in counts or ():
            if count < 1:
                raise ConfigError(f"A {name} of {count}.", cure="Give 1 or more.")
    known = [geometry(name) for name in geometries]
    return [Case(part, g, *size) for part in parts for g in known for size in _sizes(part, batches, tokens)]


def _sizes(part: str, batches: Sequence[int] | None, tokens: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Sequences and the rows of each."""
    if part == "prefill":
        yield from ((1, count) for count in tokens) if tokens else PROMPTS
        return
    yield from ((count, 1) for count in batches or BATCHES)
    if part != "decode":
        yield from ((1, count) for count in tokens or ROWS)


@cache
def geometry(name: str) -> Geometry:
    """Raises ConfigError for a name that is not known."""
    if name not in GEOMETRIES:
        raise ConfigError(f"There is no geometry {name!r}.", cure=f"Choose one of {', '.join(GEOMETRIES)}.")
    if name == "labkit-tiny":
        return _of(name, json.loads((resolve_model(name) / "config.json").read_text(encoding="utf-8")), 1)
    return _of(name, NAMED_CONFIGS["Qwen3.5-27B"], 2 if name.endswith("tp2") else 1)


def _of(name: str, fields: Mapping[str, Any], ranks: int) -> Geometry:
    """Of a model on one of ``ranks`` GPUs."""
    config = parse_config(fields)
    assert isinstance(config, Qwen35Config)
    heads = config.linear_num_key_heads // ranks, config.linear_num_value_heads // ranks
    return Geometry(
        name, *heads, config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim
    )
