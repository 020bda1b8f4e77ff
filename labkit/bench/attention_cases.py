"""What ``labkit bench attention`` measures: whose heads, how many tokens, in which pages, and what that must move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labkit.errors import ConfigError
from labkit.ops.layout import PAGE_SIZE
from labkit.quant.kv import KVFormat

KV_DTYPES = ("fp16", "int8", "int4", "k8v4")
BATCHES = (1, 8)
DECODE_CONTEXTS = (1024, 4096, 16384, 65536, 131072)
CHUNKS = (2048, 4096)
PREFILL_CONTEXTS = (4096, 32768)


@dataclass(frozen=True)
class Geometry:
    """Heads of one attention layer on one GPU."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    def kv_bytes(self, kv: str, tokens: int) -> int:
        """Of K and V of so many tokens, scales included."""
        return tokens * self.kv_heads * kv_format(kv).bytes_per_head(self.head_dim)


GEOMETRIES = {
    "27b-tp2": Geometry("27b-tp2", 12, 2, 256),  # Qwen3.5-27B on one of two GPUs
    "smollm2": Geometry("smollm2", 9, 3, 64),
}


@dataclass(frozen=True)
class DecodeCase:
    """``batch`` sequences of ``context`` tokens, one row each."""

    geometry: Geometry
    batch: int
    context: int

    def __str__(self) -> str:
        return f"decode {self.geometry.name}, batch {self.batch}, {self.context:,} tokens"

    def kv_bytes(self, kv: str) -> int:
        """What one call reads of K and V, scales included."""
        return self.geometry.kv_bytes(kv, self.batch * self.context)


@dataclass(frozen=True)
class PrefillCase:
    """The last ``chunk`` tokens of one sequence of ``context``."""

    geometry: Geometry
    chunk: int
    context: int

    def __str__(self) -> str:
        return f"prefill {self.geometry.name}, {self.chunk:,} of {self.context:,} tokens"

    @property
    def flop(self) -> int:
        """Of both products, for the pairs that a causal mask leaves: a row sees itself and what came before."""
        before = self.context - self.chunk
        pairs = self.chunk * before + self.chunk * (self.chunk + 1) // 2
        return 4 * self.geometry.heads * self.geometry.head_dim * pairs

    def moved_bytes(self, kv: str) -> int:
        """K and V, the queries, the result."""
        rows = 2 * 2 * self.chunk * self.geometry.heads * self.geometry.head_dim
        return rows + self.geometry.kv_bytes(kv, self.context)


def kv_format(kv: str) -> KVFormat:
    """The format of pages for kernels, which work in halves. Raises ConfigError for another name."""
    return KVFormat.named(kv, torch.float16)


def decode_cases(
    geometries: Sequence[str], batches: Sequence[int], contexts: Sequence[int] | None = None
) -> list[DecodeCase]:
    """All combinations; contexts: None for the usual ones. Raises ConfigError for sizes that cannot be measured."""
    for batch in batches:
        if batch < 1:
            raise ConfigError(f"A batch of {batch} sequences.", cure="Give 1 or more.")
    lengths = _whole_pages(contexts or DECODE_CONTEXTS)
    return [DecodeCase(geometry(name), b, n) for name in geometries for b in batches for n in lengths]


def prefill_cases(
    geometries: Sequence[str], chunks: Sequence[int], contexts: Sequence[int] | None = None
) -> list[PrefillCase]:
    """All combinations with room for the chunk; contexts: None for the usual ones.

    Raises ConfigError for sizes that cannot be measured, or if no context holds a chunk.
    """
    for chunk in chunks:
        if chunk < 1:
            raise ConfigError(f"A chunk of {chunk} tokens.", cure="Give 1 or more.")
    lengths = _whole_pages(contexts or PREFILL_CONTEXTS)
    pairs = [(chunk, n) for chunk in chunks for n in lengths if chunk <= n]
    if not pairs:
        message = f"No context of {', '.join(map(str, lengths))} holds a chunk of {min(chunks)}."
        raise ConfigError(message, cure="Give a smaller --chunks, or measure decode alone with --part decode.")
    return [PrefillCase(geometry(name), *pair) for name in geometries for pair in pairs]


def geometry(name: str) -> Geometry:
    """Raises ConfigError for a name that is not known."""
    if name not in GEOMETRIES:
        raise ConfigError(f"There is no geometry {name!r}.", cure=f"Choose one of {', '.join(GEOMETRIES)}.")
    return GEOMETRIES[name]


def _whole_pages(contexts: Sequence[int]) -> Sequence[int]:
    """Whole pages alone: the library then needs no mask, and its fastest kernels take part."""
    for n in contexts:
        if n < 1 or n % PAGE_SIZE:
            message = f"A context of {n} tokens does not fill pages."
            raise ConfigError(message, cure=f"Give multiples of {PAGE_SIZE}.")
    return contexts
