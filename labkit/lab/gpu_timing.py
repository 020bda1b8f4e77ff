"""How long an operation takes on the GPU of this machine, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch

REPEATS = 20
ABSENT = "no NVIDIA GPU here: nothing measured"


def gpu_report(prepare: Callable[..., Callable[[], object]], *arguments: object, nbytes: int, flop: int = 0) -> str:
    """Measure a call and say what bandwidth it reached, and how fast it computed.

    prepare(*arguments): makes the tensors on the GPU and returns the call to measure; not called where there is no GPU.
    The tensors should exceed twice the L2 cache, or the cache answers for the memory. nbytes, flop: what one call must
    move and compute; without flop only the bandwidth is told.
    """
    if not torch.cuda.is_available():
        return ABSENT
    seconds = seconds_per_call(prepare(*arguments))
    device = torch.cuda.get_device_name()
    rates = f"{nbytes / seconds / 1e9:.0f} GB/s" + (f", {flop / seconds / 1e12:.1f} TFLOP/s" if flop else "")
    return f"{1e3 * seconds:.3f} ms, {rates} (measured on {device}, torch {torch.__version__})"


def seconds_per_call(call: Callable[[], object]) -> float:
    """Median over 20 calls, by events on the current stream, after three calls that do not count."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return median(times)
