"""``labkit bench gdn``: the operations of Gated DeltaNet beside their definitions in plain torch, in one run.

The convolution, decode and the norm are bound by memory: their figures are GB/s of what a call must move, everything
once (decode: mostly the states, read and written), and their share of a large copy's bandwidth, bytes read plus bytes
written, measured in the same run. Prefill is bound by arithmetic: TFLOP/s of the products of the chunked form
(``gdn_cases.Case.flop``), and microseconds for 1,024 tokens. Calls stand in CUDA graphs that rotate over rows, results,
parameters and slots of states larger than twice the L2 cache together; the median of ten replays.

Beside them stands torch: what each operation's ``reference`` takes on the same GPU and arguments, fp32 inside, in such
a graph too. Left out is what takes over a quarter of a second, and torch where the memory does not hold what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.bench.clock import Clock, Progress, copy_gb_per_s, current_gpu, fitting, origin, sources_digest, timed
from labkit.bench.gdn_calls import OPERATIONS, TORCH, arguments_of, calls_of
from labkit.bench.gdn_cases import Case
from labkit.bench.gdn_times import GdnBench, GdnTimes


def bench_gdn(cases: Sequence[Case], all_rungs: bool = False, progress: Progress | None = None) -> GdnBench:
    """Measure on the current GPU. Raises ExecutorError without one, or if its memory does not hold a case."""
    device = current_gpu("labkit bench gdn")
    copy = copy_gb_per_s(device)
    times = measure(cases, device, Clock.of(device), all_rungs, progress)
    return GdnBench(*origin(device, timed_kernels()), copy, tuple(times))


def timed_kernels() -> str:
    """A digest of the ladders' sources."""
    return sources_digest((each.op, rung) for each in OPERATIONS.values() for rung in each.rungs)


def measure(
    cases: Sequence[Case],
    device: torch.device,
    clock: Clock,
    all_rungs: bool = False,
    progress: Progress | None = None,
) -> list[GdnTimes]:
    """All cases. Raises ExecutorError if the device's memory does not hold one."""
    times = []
    for done, case in enumerate(cases):
        if progress:
            progress(done, len(cases), str(case))
        with fitting(case, "Leave it out with --geometry, --batch or --tokens."):
            arguments = arguments_of(case, clock.copies(case.moved_bytes), device)
            times.append(GdnTimes(case, timed(calls_of(case, arguments, all_rungs), clock, others=(TORCH,))))
    return times
