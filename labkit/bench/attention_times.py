"""What ``labkit bench attention`` found: seconds of each kernel, and the rates that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.bench.attention_cases import DecodeCase, PrefillCase
from labkit.bench.clock import LABKIT, Seconds, microseconds


@dataclass(frozen=True)
class DecodeTimes:
    """Seconds of one call for each kernel, for one case and KV dtype."""

    case: DecodeCase
    kv: str
    seconds: Seconds

    def to_dict(self, copy_gb_per_s: float) -> dict[str, Any]:
        """GB/s are those of the bytes in these pages, whatever the kernel read."""
        nbytes = self.case.kv_bytes(self.kv)
        rates = {kernel: nbytes / seconds / 1e9 for kernel, seconds in self.seconds.items()}
        share = rates[LABKIT] / copy_gb_per_s if LABKIT in rates else None
        place = {"model": self.case.geometry.name, "batch": self.case.batch, "context": self.case.context}
        figures = {"mb": nbytes / 1e6, "microseconds": microseconds(self.seconds), "gb_per_s": rates}
        return {**place, "kv": self.kv, **figures, "share_of_copy": share}


@dataclass(frozen=True)
class PrefillTimes:
    """Seconds of one call for each kernel, for one case and KV dtype."""

    case: PrefillCase
    kv: str
    seconds: Seconds

    def to_dict(self) -> dict[str, Any]:
        """TFLOP/s count the pairs that the causal mask leaves."""
        rates = {kernel: self.case.flop / seconds / 1e12 for kernel, seconds in self.seconds.items()}
        place = {"model": self.case.geometry.name, "chunk": self.case.chunk, "context": self.case.context}
        figures = {"gflop": self.case.flop / 1e9, "microseconds": microseconds(self.seconds), "tflop_per_s": rates}
        return {**place, "kv": self.kv, **figures}


@dataclass(frozen=True)
class AttentionBench:
    """One run. copy_gb_per_s: bytes read plus bytes written by a large copy. kernels: digest of the sources."""

    device: str
    driver: str
    torch: str
    labkit: str
    kernels: str
    date: str
    copy_gb_per_s: float
    decode: tuple[DecodeTimes, ...]
    prefill: tuple[PrefillTimes, ...]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        decode = [times.to_dict(self.copy_gb_per_s) for times in self.decode]
        return {**vars(self), "decode": decode, "prefill": [t.to_dict() for t in self.prefill], "origin": "measured"}
