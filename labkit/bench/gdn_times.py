"""What ``labkit bench gdn`` found: seconds of each kernel, and the rates that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.bench.clock import LABKIT, Seconds, microseconds
from labkit.bench.gdn_cases import PARTS, Case

THOUSAND = 1024  # tokens


@dataclass(frozen=True)
class GdnTimes:
    """Seconds of one call for each kernel, for one case."""

    case: Case
    seconds: Seconds

    def to_dict(self, copy_gb_per_s: float) -> dict[str, Any]:
        """For --json: prefill is judged by what it multiplies, the rest by the bytes that it must move."""
        case = self.case
        place = {"model": case.geometry.name, "sequences": case.sequences, "tokens": case.tokens}
        figures = self._products() if case.part == "prefill" else self._bytes(copy_gb_per_s)
        return {**place, "microseconds": microseconds(self.seconds), **figures}

    def _bytes(self, copy_gb_per_s: float) -> dict[str, Any]:
        """GB/s are those of the bytes that a call must move, whatever the kernel moved."""
        nbytes = self.case.moved_bytes
        rates = {kernel: nbytes / seconds / 1e9 for kernel, seconds in self.seconds.items()}
        share = rates[LABKIT] / copy_gb_per_s if LABKIT in rates else None
        return {"mb": nbytes / 1e6, "gb_per_s": rates, "share_of_copy": share}

    def _products(self) -> dict[str, Any]:
        flop, part = self.case.flop, THOUSAND / self.case.rows
        return {
            "gflop": flop / 1e9,
            "microseconds_per_1024_tokens": {k: part * each for k, each in microseconds(self.seconds).items()},
            "tflop_per_s": {kernel: flop / seconds / 1e12 for kernel, seconds in self.seconds.items()},
        }


@dataclass(frozen=True)
class GdnBench:
    """One run. copy_gb_per_s: bytes read plus bytes written by a large copy. kernels: digest of the sources."""

    device: str
    driver: str
    torch: str
    labkit: str
    kernels: str
    date: str
    copy_gb_per_s: float
    times: tuple[GdnTimes, ...]

    def to_dict(self) -> dict[str, Any]:
        """For --json: a list for each part."""
        document = {name: value for name, value in vars(self).items() if name != "times"}
        rows = {part: [t.to_dict(self.copy_gb_per_s) for t in self.times if t.case.part == part] for part in PARTS}
        return {**document, **rows, "origin": "measured"}
