"""``labkit bench run --peer transformers``: both systems on the same machine, in the same run, on the same weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.bench.load_cost import LoadCost, measure_load
from labkit.bench.peer_model import load_peer, plain_checkpoint, transformers
from labkit.bench.peer_subject import TransformersSubject
from labkit.bench.results import BenchRow, Spread
from labkit.bench.run import Progress, SideBySide
from labkit.bench.subject import LabkitSubject
from labkit.bench.timing import ShouldStop
from labkit.bench.workload import Workload
from labkit.engine.llm import LLM
from labkit.model.resolve import resolve_model

PEER_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class PeerCell:
    """One (context, batch) cell: labkit's row, and transformers' in every dtype that was tried."""

    labkit: BenchRow
    peers: tuple[BenchRow, ...]

    @property
    def peer(self) -> BenchRow | None:
        """transformers in the dtype that decodes faster here; None if it could not run."""
        ran = [row for row in self.peers if _decode(row)]
        return max(ran, key=lambda row: _median(_decode(row)) or 0.0, default=None)

    @property
    def decode_ratio(self) -> float | None:
        """labkit / transformers, decode tokens per second."""
        return _ratio(_decode(self.labkit), _decode(self.peer))

    @property
    def prefill_ratio(self) -> float | None:
        """labkit / transformers, prefill tokens per second, where transformers takes its faster dtype for that."""
        rates = [row.prefill_tokens_per_s for row in self.peers if row.prefill_tokens_per_s is not None]
        return _ratio(self.labkit.prefill_tokens_per_s, max(rates, key=lambda rate: rate.median, default=None))


@dataclass(frozen=True)
class PeerReport:
    """All cells, and what loading cost each system. loads is empty where it was not measured."""

    cells: tuple[PeerCell, ...]
    loads: tuple[LoadCost, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all rows as measured, the comparison, the loads."""
        rows = [row for cell in self.cells for row in (cell.labkit, *cell.peers)]
        return {
            "rows": [row.to_dict() for row in rows],
            "comparison": self.comparison(),
            "loads": [load.to_dict() for load in self.loads],
        }

    def comparison(self) -> list[dict[str, Any]]:
        """One row per cell: both decode rates and the ratios ``labkit / transformers``; None where one is missing.

        decode_ratio_to_batch_1 sets labkit's rate over the whole batch against transformers' at batch 1.
        """
        return [self._compare(cell) for cell in self.cells]

    def _compare(self, cell: PeerCell) -> dict[str, Any]:
        ours, peer, single = cell.labkit, cell.peer, self._batch_1(cell.labkit.context)
        return {
            "context": ours.context,
            "batch": ours.batch,
            "labkit_decode_tokens_per_s": _median(_decode(ours)),
            "transformers_decode_tokens_per_s": _median(_decode(peer)),
            "transformers_dtype": peer.dtype if peer else None,
            "decode_ratio": cell.decode_ratio,
            "decode_ratio_to_batch_1": _ratio(_decode(ours), _decode(single)),
            "prefill_ratio": cell.prefill_ratio,
        }

    def _batch_1(self, context: int) -> BenchRow | None:
        found = [cell for cell in self.cells if (cell.labkit.context, cell.labkit.batch) == (context, 1)]
        return found[0].peer if found else None


def run_peer_transformers(
    model: str | Path,
    context_lengths: Sequence[int] = (128,),
    batch_sizes: Sequence[int] = (1, 8),
    decode_tokens: int = 32,
    repeats: int = 3,
    progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
    *,
    measure_loads: bool = True,
    **settings: Any,
) -> PeerReport:
    """Measure labkit and transformers (in fp32 and in bf16) side by side, their runs alternating.

    settings: those of LLM (dtype, kv_cache_dtype, ...); decode_batch_size is at least the largest batch. Everything
    runs in this process on the same number of threads, except loading, which is measured in fresh processes first.
    Raises MissingExtraError without transformers, and the errors of ``LLM`` and ``run_bench``.
    """
    workload = Workload(context_lengths, batch_sizes, decode_tokens, repeats)
    settings["decode_batch_size"] = max(*batch_sizes, settings.get("decode_batch_size", 1))
    transformers()  # its absence is told before anything takes time
    path = resolve_model(str(model))
    with tempfile.TemporaryDirectory(prefix="labkit-peer-") as scratch:
        plain = plain_checkpoint(path, Path(scratch))
        loads = _measure_loads(path, plain, settings) if measure_loads else ()
        peers = [TransformersSubject(load_peer(plain, getattr(torch, d)), str(model), d) for d in PEER_DTYPES]
        with LLM(model, **settings) as llm:
            cells = SideBySide([LabkitSubject(llm), *peers], workload, progress, should_stop)
            return PeerReport(tuple(PeerCell(rows[0], tuple(rows[1:])) for rows in cells), loads)


def _measure_loads(path: Path, plain: Path, settings: dict[str, Any]) -> tuple[LoadCost, ...]:
    threads = torch.get_num_threads()
    rest = {name: value for name, value in settings.items() if name != "dtype"}
    ours = measure_load("labkit", path, settings.get("dtype", "auto"), threads, **rest)
    return ours, *(measure_load("transformers", plain, dtype, threads) for dtype in PEER_DTYPES)


def _decode(row: BenchRow | None) -> Spread | None:
    return row.decode_tokens_per_s if row else None


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None


def _ratio(ours: Spread | None, theirs: Spread | None) -> float | None:
    return ours.median / theirs.median if ours and theirs else None
