"""What benchmarks of single operations share: the clock that times them on a GPU, and the origin of their figures.

Calls stand in CUDA graphs that rotate over buffers larger than twice the L2 cache together; the median of ten replays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import torch

from labkit import __version__
from labkit.bench.graph_timing import Call, graph_seconds, rotations, seconds_once
from labkit.bench.machine import driver_version
from labkit.device.cache import digest
from labkit.device.sources import read_rung
from labkit.errors import ExecutorError

LABKIT = "labkit"  # the rung that runs unless another is asked for
LONGEST = 0.25  # seconds of a call: what is slower is left out
COPIED = 2**30  # bytes

Seconds = dict[str, float]  # of one call, by the kernel's name
Progress = Callable[[int, int, str], None]  # done, total, what comes next


@dataclass(frozen=True)
class Clock:
    """How calls are timed: seconds of one (None: too slow), and how many buffers of so many bytes they rotate over."""

    seconds: Callable[[Sequence[Call]], float | None]
    copies: Callable[[int], int]

    @classmethod
    def of(cls, device: torch.device) -> Clock:
        """The real one."""
        return cls(graph_median, partial(rotations, device=device))


def current_gpu(command: str) -> torch.device:
    """The GPU on which ``command`` measures. Raises ExecutorError without one."""
    if not torch.cuda.is_available():
        raise ExecutorError(f"{command} measures on an NVIDIA GPU, and torch sees none.", cure="Run it there.")
    return torch.device("cuda", torch.cuda.current_device())


def graph_median(calls: Sequence[Call]) -> float | None:
    """Seconds per call in a CUDA graph of all of them; None where one alone takes more than LONGEST."""
    once = seconds_once(calls[0])
    return graph_seconds(calls, once).median if once <= LONGEST else None


def copy_gb_per_s(device: torch.device) -> float:
    """Of a large buffer: bytes read plus bytes written, by an elementwise kernel."""
    source = torch.zeros(COPIED // 4, device=device)
    target = torch.empty_like(source)
    call = partial(torch.mul, source, 1.0, out=target)
    return 2 * COPIED / graph_seconds([call], seconds_once(call)).median / 1e9


def timed(calls: Mapping[str, Sequence[Call]], clock: Clock, others: Collection[str] = ()) -> Seconds:
    """Seconds of each kernel that is not too slow; of ``others``, those that labkit is compared with, if they fit."""
    found = {
        name: seconds_if_it_fits(group, clock) if name in others else clock.seconds(group)
        for name, group in calls.items()
    }
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def seconds_if_it_fits(calls: Sequence[Call], clock: Clock) -> float | None:
    """None also where its workspaces do not fit: that is no reason to measure nothing else."""
    try:
        return clock.seconds(calls)
    except torch.OutOfMemoryError:
        return None


def microseconds(seconds: Seconds) -> dict[str, float]:
    """The same times."""
    return {kernel: 1e6 * value for kernel, value in seconds.items()}


@contextmanager
def fitting(case: object, cure: str) -> Iterator[None]:
    """Raises ExecutorError, with this cure, where the GPU's memory does not hold the case."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise ExecutorError(f"The GPU's memory does not hold the case {case}.", cure=cure) from None


def origin(device: torch.device, kernels: str) -> tuple[str, str, str, str, str, str]:
    """Where figures come from: GPU, driver, torch, labkit, a digest of the sources that were timed, the date."""
    date = datetime.now(UTC).date().isoformat()
    return torch.cuda.get_device_name(device), driver_version(), torch.__version__, __version__, kernels, date


def sources_digest(rungs: Iterable[tuple[str, str]]) -> str:
    """A digest of these (op, rung): figures that were measured with other sources may be out of date."""
    return digest([[op, rung, read_rung(op, rung).digest] for op, rung in rungs])
