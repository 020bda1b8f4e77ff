"""The schema of a measured row: no figure without its origin.

A row is one (context, batch) cell of a benchmark. Rates are tokens per second, times are seconds; each is the median of
the repeats with the smallest and the largest beside it.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from labkit import __version__
from labkit.bench.machine import cpu_name


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises ValueError (as ``statistics.median`` does) if there is none."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])


@dataclass(frozen=True)
class Origin:
    """Where figures come from. commit: of the checkout, with "+changes" if it was modified; None for a wheel."""

    origin: str
    device: str
    threads: int
    torch: str
    labkit: str
    commit: str | None
    date: str


def measured_here(device: torch.device | str = "cpu") -> Origin:
    """The origin of what is measured on this machine now, by a computation on ``device``."""
    return Origin(
        origin="measured",
        device=cpu_name() if torch.device(device).type == "cpu" else torch.cuda.get_device_name(device),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        labkit=__version__,
        commit=_commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def dtype_name(dtype: torch.dtype) -> str:
    """What ran, such as "bfloat16": a figure does not say "auto", which may mean something else elsewhere."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class BenchRow:
    """One cell of a benchmark.

    context: prompt tokens of each sequence. decode_tokens: measured tokens per sequence, all decoding together.
    prefill_tokens_per_s: batch * context / time until every sequence has its first token.
    decode_tokens_per_s: batch * decode_tokens / time that these took, summed over the batch.
    ttft_s, tpot_s: time to first token and time per token after it, means over the batch.
    ceiling_tokens_per_s: what the memory bandwidth allows at most (see ``labkit.bench.ceiling``).
    error: why there are no figures.
    """

    system: str
    model: str
    dtype: str
    kv_cache_dtype: str
    context: int
    batch: int
    decode_tokens: int
    repeats: int
    origin: Origin
    prefill_tokens_per_s: Spread | None = None
    decode_tokens_per_s: Spread | None = None
    ttft_s: Spread | None = None
    tpot_s: Spread | None = None
    ceiling_tokens_per_s: float | None = None
    error: str | None = None

    @property
    def ceiling_share(self) -> float | None:
        """Decode rate over its ceiling. Above 1 the weights came from the cache, not from memory."""
        if self.decode_tokens_per_s is None or not self.ceiling_tokens_per_s:
            return None
        return self.decode_tokens_per_s.median / self.ceiling_tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """Flat, for JSON and data frames: a spread ``x`` becomes ``x``, ``x_min`` and ``x_max``."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in SPREADS:
                flat |= _flat_spread(name, value)
            elif name not in ("origin", "error"):
                flat[name] = value
        return flat | {"ceiling_share": self.ceiling_share, "error": self.error} | vars(self.origin)


SPREADS = ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_s", "tpot_s")


def _flat_spread(name: str, value: Spread | None) -> dict[str, float | None]:
    median, low, high = (value.median, value.low, value.high) if value else (None, None, None)
    return {name: median, f"{name}_min": low, f"{name}_max": high}


@cache
def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    return f"{head}+changes" if head and _git(root, "status", "--porcelain") else head


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):  # no git here: the version still says what ran
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
