"""``labkit tune``: times every candidate of a linear layer on the GPU of this machine, and keeps the table.

For each shape and number of rows, each candidate of `labkit.ops.linear_candidates` multiplies with random weights, in a
CUDA graph over buffers larger than twice the L2 cache (see `graph_timing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import torch

from labkit import __version__
from labkit.bench.graph_timing import Call, graph_seconds, rotations, seconds_once
from labkit.bench.machine import driver_version
from labkit.bench.tune_weights import random_weights, weight_bytes
from labkit.errors import ConfigError, ExecutorError
from labkit.ops.linear_candidates import CANDIDATES, KernelWeight, timed_kernels
from labkit.ops.tuning import table_for
from labkit.ops.tuning_table import CANDIDATES as ROWS_TAKEN
from labkit.ops.tuning_table import Measured, TuningTable, WeightShape, load_table, store_table
from labkit.ops.workspace import HalfWorkspace

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # 4096: the largest prefill chunk
HOPELESS = 3.0  # a candidate whose first call takes this many times the best one's time is not timed further,
LAUNCH = 1e-4  # seconds that the launches of such a call, outside of a graph, may take on top

Progress = Callable[[int, int, str], None]  # done, total, what comes next


def tune(shapes: Sequence[WeightShape], rows: Sequence[int] = ROWS, progress: Progress | None = None) -> TuningTable:
    """Measure every shape on the current GPU, store the table for its device name, and return what was measured.

    An older table of the same software and kernels keeps its other shapes. Raises ExecutorError without a GPU,
    ConfigError without anything to measure or for what does not fit its memory, and OSError if the user's cache folder
    cannot be written.
    """
    if not shapes or not rows or min(rows) < 1:
        raise ConfigError("There is nothing to measure.", cure="Name shapes, and numbers of rows from 1.")
    if not torch.cuda.is_available():
        cure = "Run it on the machine with the GPU; without a table the defaults hold, which labkit doctor names."
        raise ExecutorError("labkit tune measures on an NVIDIA GPU, and torch sees none.", cure=cure)
    device, measured = torch.device("cuda", torch.cuda.current_device()), list[Measured]()
    for done, shape in enumerate(shapes):
        try:
            weights = random_weights(shape, rotations(weight_bytes(shape), device), device)
            for step, count in enumerate(rows):
                if progress:
                    progress(done * len(rows) + step, len(shapes) * len(rows), f"{shape}, {count} rows")
                measured.append(measure(shape, count, weights))
        except torch.OutOfMemoryError as error:
            message = f"The memory of this GPU does not suffice for {shape} with up to {max(rows)} rows."
            raise ConfigError(message, cure="Name a smaller --shapes, or fewer --rows.") from error
    table = _table(device, measured)
    store_table(table.merged(_older(table.device)))
    table_for.cache_clear()
    return table


def measure(shape: WeightShape, rows: int, weights: Sequence[KernelWeight]) -> Measured:
    """Every candidate that takes so many rows, but those that are hopeless at first sight.

    weights: of this shape, on one GPU, together larger than twice its L2 cache.
    """
    x = torch.randn(rows, shape.inputs, device=weights[0].device).half()
    seconds: dict[str, float] = {}
    for name, most in ROWS_TAKEN[shape.kind].items():
        if most is None or rows <= most:
            candidate, space = CANDIDATES[shape.kind][name], HalfWorkspace()
            calls: list[Call] = [partial(candidate, x, weight, space, None) for weight in weights]
            taken = _seconds(calls, min(seconds.values(), default=None))
            seconds |= {} if taken is None else {name: taken}
    return Measured(shape, rows, seconds, datetime.now(UTC).isoformat(timespec="seconds"))


def _seconds(calls: Sequence[Call], best: float | None) -> float | None:
    estimate = seconds_once(calls[0])
    if best is not None and estimate > HOPELESS * best + LAUNCH:
        return None
    return graph_seconds(calls, estimate).median


def _table(device: torch.device, measured: Sequence[Measured]) -> TuningTable:
    return TuningTable(
        device=torch.cuda.get_device_name(device),
        driver=driver_version(),
        toolkit=torch.version.cuda or "",
        torch=torch.__version__,
        labkit=__version__,
        kernels=timed_kernels(),
        measured=tuple(measured),
    )


def _older(device_name: str) -> TuningTable | None:
    """The table so far; one that cannot be used is replaced."""
    try:
        return load_table(device_name)
    except ConfigError:
        return None
