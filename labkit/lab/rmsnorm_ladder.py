"""The rungs of the RMSNorm ladder on the simulator, judged against the reference: what chapter 03 shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import labkit.sim
from labkit.device.sources import read_rung, rung_path
from labkit.lab.changed_rung import changed_rung
from labkit.lab.kernel_explorer import Page, page
from labkit.lab.op_counts import CountedRun, simulated
from labkit.ops import rmsnorm
from labkit.sim.api import Result
from labkit.sim.trace import Trace

EPS = 1e-6
TOLERANCE = 2e-3  # of a half result: its last bit is worth up to 1e-3 of it


@dataclass(frozen=True)
class RungRun(CountedRun):
    """A rung's run on random rows. x: fp16 [rows, hidden], as the kernel left it; y: what it gave, of x's shape."""

    rung: str
    x: Tensor
    y: Tensor
    expected: Tensor
    result: Result

    @property
    def matches(self) -> bool:
        """Every element agrees with the reference, to the precision of a half."""
        return torch.allclose(self.y.float(), self.expected.float(), rtol=TOLERANCE, atol=TOLERANCE)


def run_rung(rung: str, rows: int, hidden: int, *, fused: bool = False, trace: bool = False) -> RungRun:
    """Run a rung as the op module launches it. fused: ``add_rmsnorm``, which adds a residual to x first."""
    x, weight = torch.randn(rows, hidden).half(), torch.rand(hidden) + 0.5
    if not fused:
        expected = rmsnorm.reference(x, weight, EPS)
        y, result = simulated(rmsnorm.rmsnorm, x, weight, EPS, rung=rung, trace=trace)
        return RungRun(rung, x, y, expected, result)
    residual = torch.randn(rows, hidden).half()
    expected = rmsnorm.add_reference(x.clone(), residual, weight, EPS)
    y, result = simulated(rmsnorm.add_rmsnorm, x, residual, weight, EPS, rung=rung, trace=trace)
    return RungRun(rung, x, y, expected, result)


def run_text(text: str, rung: str, rows: int, hidden: int) -> RungRun:
    """Run a changed text of a rung, with that rung's macros and headers. Raises KernelBuildError."""
    return _run(text, rung, rows, hidden, [rung_path("rmsnorm", rung).parent])


def _run(source: str | Path, rung: str, rows: int, hidden: int, folders: Sequence[str | Path]) -> RungRun:
    x, weight = torch.randn(rows, hidden).half(), torch.rand(hidden) + 0.5
    y = torch.zeros_like(x)
    macros = rmsnorm.macros(hidden)
    result = labkit.sim.run(
        source,
        name="rmsnorm",
        grid=rows,
        block=macros["THREADS"],
        args=[x, weight, y, EPS],
        macros=macros,
        include_dirs=folders,
    )
    return RungRun(rung, x, y, rmsnorm.reference(x, weight, EPS), result)


def run_changed(rung: str, old: str, new: str, rows: int, hidden: int) -> RungRun:
    """Run a rung with ``new`` in place of ``old``, in its file or in a header of it, wherever ``old`` stands.

    Raises ValueError if it stands nowhere: nothing would have changed. Raises KernelBuildError.
    """
    with changed_rung("rmsnorm", rung, old, new) as (file, folder):
        return _run(file, rung, rows, hidden, [folder])


def first_sum(run: RungRun) -> list[tuple[int, ...]]:
    """The lanes that each lane listened to in the first five shuffles of the first warp; the run must have a trace."""
    trace = run.counters
    if not isinstance(trace, Trace):
        raise ValueError("run the rung with trace=True")
    return [each.sources for each in trace.shuffles if (each.block, each.warp) == (0, 0)][:5]


def explorer_page(run: RungRun) -> Page:
    """The rung's source with what its lines cost in this run."""
    source = read_rung("rmsnorm", run.rung)
    return page(run.rung, source.text, run.counters, source.headers)
