"""How fast the simulator is: three kernels, beside the speed of NumPy on the same machine.

Times are of the launch alone, in milliseconds: compiling and loading happen once and are left out. They are processor
time of this thread, which other programs disturb less than the clock on the wall; the best of several runs counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labkit.bench.results import Origin, measured_here
from labkit.device.sources import rung_path
from labkit.sim.counters import Counters
from labkit.sim.findings import Findings
from labkit.sim.machine import launch
from labkit.sim.options import Observers, Options
from labkit.sim.program import Kernel
from labkit.sim.races import Races
from labkit.sim.source import load_program

ASSETS = Path(__file__).parent / "assets"
MATMUL = 1024  # rows and columns of the NumPy product beside which the simulator is measured
WARM_UPS, REPEATS = 2, 9

Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """One kernel with its arguments; check compares what it made with NumPy and returns the largest relative error."""

    name: str
    kernel: Kernel
    grid: Dimensions
    block: Dimensions
    arguments: list[Any]
    error: Callable[[], float]


@dataclass(frozen=True)
class SpeedRow:
    """Milliseconds of one kernel, with more and more of the simulator switched on."""

    kernel: str
    threads: int
    vector_instructions: int  # PTX instructions run, each for many threads at once
    plain_ms: float  # bounds are tested even so
    checks_ms: float  # and initialisation, races, fences
    everything_ms: float  # and counters
    checks_per_matmul: float  # checks_ms over the time of a NumPy float32 product of 1024 x 1024 matrices


@dataclass(frozen=True)
class SpeedReport:
    """What ``labkit bench sim`` prints."""

    matmul_ms: float
    rows: list[SpeedRow]
    origin: Origin

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"matmul_ms": self.matmul_ms, "rows": [asdict(row) for row in self.rows], **asdict(self.origin)}


def measure(repeats: int = REPEATS) -> SpeedReport:
    """Runs every case in every setting. The results are checked against NumPy on the way."""
    generator = np.random.default_rng(0)
    left, right = generator.standard_normal((2, MATMUL, MATMUL)).astype(np.float32)
    matmul = _best(lambda: left @ right, repeats)
    return SpeedReport(matmul, [_row(case, matmul, repeats) for case in cases(generator)], measured_here())


def speed_table(report: SpeedReport) -> Any:
    """The report as a rich table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    origin = f"measured: {report.origin.device}, labkit {report.origin.labkit}, {report.origin.date}"
    matmul = f"milliseconds; NumPy float32 {MATMUL} x {MATMUL} x {MATMUL} takes {report.matmul_ms:.1f} ms here"
    notes = (
        f"The best of {REPEATS} runs, after {WARM_UPS} to warm up. instr.: PTX instructions, each for many threads at "
        "once. plain: only bounds are tested; checks: also uninitialized reads, races, fences; counters too: also "
        "what memory moves; checks / matmul: the time with checks, in NumPy products."
    )
    table = Table(
        title=f"{origin}\n{matmul}",
        caption=notes,
        caption_justify="left",
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("kernel")
    for name in ("threads", "instr.", "plain", "checks", "counters too", "checks / matmul"):
        table.add_column(name, justify="right")
    for row in report.rows:
        times = (f"{ms:.1f}" for ms in (row.plain_ms, row.checks_ms, row.everything_ms))
        ratio = f"{row.checks_per_matmul:.2f}"
        table.add_row(row.kernel, f"{row.threads:,}", f"{row.vector_instructions:,}", *times, ratio)
    return table


def cases(generator: np.random.Generator) -> list[Case]:
    """The three kernels, with random inputs."""
    return [_rmsnorm(generator), _gemm(generator), _gemv(generator)]


def _rmsnorm(generator: np.random.Generator) -> Case:
    rows, hidden = 16, 512
    macros = {"HIDDEN": hidden, "THREADS": 128, "VEC": 4, "ZERO_CENTERED": 0}
    kernel = load_program(rung_path("rmsnorm", "3_vector"), "rmsnorm", macros=macros).kernel
    x = generator.standard_normal((rows, hidden)).astype(np.float16)
    weight, y = generator.uniform(0.5, 1.5, hidden).astype(np.float32), np.zeros_like(x)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    name = f"RMSNorm {rows} x {hidden}"
    return Case(name, kernel, (rows, 1, 1), (128, 1, 1), [x, weight, y, 1e-6], lambda: _error(y, expected))


def _gemm(generator: np.random.Generator) -> Case:
    m, n, k = 64, 256, 256
    kernel = load_program(ASSETS / "mma_gemm.cu").kernel
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float16)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    name = f"mma GEMM {m} x {n} x {k}"
    return Case(name, kernel, (n // 64, m // 64, 1), (128, 1, 1), [a, b, c, n, k], lambda: _error(c, expected))


def _gemv(generator: np.random.Generator) -> Case:
    n, k, group = 1024, 512, 128
    kernel = load_program(ASSETS / "int4_gemv.cu").kernel
    x = generator.standard_normal(k).astype(np.float16)
    weights, zeros = (generator.integers(0, 1 << 32, (rows, n // 8), dtype=np.uint32) for rows in (k, k // group))
    scales = generator.uniform(0.5, 1.5, (k // group, n)).astype(np.float16)
    y = np.zeros(n, np.float16)
    wide = (_nibbles(weights) - np.repeat(_nibbles(zeros), group, axis=0)) * np.repeat(scales, group, axis=0)
    expected = x.astype(np.float64) @ wide
    arguments = [x, weights, zeros, scales, y, n, k]
    return Case(f"INT4 GEMV {n} x {k}", kernel, (n // 64, 1, 1), (256, 1, 1), arguments, lambda: _error(y, expected))


def _nibbles(words: Any) -> Any:
    """Column i of a word of eight is its nibble i, counted from the low end."""
    return (words[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(len(words), -1).astype(np.float64)


def _error(result: Any, expected: Any) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def _row(case: Case, matmul: float, repeats: int) -> SpeedRow:
    everything = Options()
    checked = replace(everything, counters=False)
    plain = replace(checked, checks=False, races=False)
    instructions = _launch(case, everything)
    plain_ms, checks_ms, everything_ms = (
        _best(partial(_launch, case, options), repeats) for options in (plain, checked, everything)
    )
    threads = int(np.prod(case.grid)) * int(np.prod(case.block))
    return SpeedRow(case.name, threads, instructions, plain_ms, checks_ms, everything_ms, checks_ms / matmul)


def _launch(case: Case, options: Options) -> int:
    findings = Findings(case.kernel, case.grid, case.block)
    races = Races(findings, case.grid, case.block) if options.races else None
    watching = Observers(findings, races, Counters(case.kernel) if options.counters else None)
    done = launch(case.kernel, case.grid, case.block, case.arguments, options=options, observers=watching)
    return done.instructions


def _best(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds of the quickest of several runs, after some to warm up."""
    times = []
    for _ in range(WARM_UPS + repeats):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return 1000 * min(times[WARM_UPS:])
