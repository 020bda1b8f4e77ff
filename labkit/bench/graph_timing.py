"""How long an operation takes on a GPU inside a CUDA graph, where no launch by the host is waited for.

The calls of a graph should rotate over buffers larger than twice the L2 cache together, or the cache answers for the
memory: ``rotations`` says how many that are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from labkit.bench.results import Spread

REPLAYS = 10
LONG_ENOUGH = 2e-3  # seconds of a replay: the cost of starting one is then below a percent
SHORTEST = 1e-6  # seconds that any kernel takes: an event's clock may say 0
WARM_UPS = 2

Call = Callable[[], object]


def rotations(nbytes: int, device: torch.device) -> int:
    """How many buffers of ``nbytes`` exceed twice the L2 cache of ``device`` together."""
    return math.ceil((2 * torch.cuda.get_device_properties(device).L2_cache_size + 1) / nbytes)


def seconds_once(call: Call) -> float:
    """One call after one that does not count, by events: a first estimate."""
    call()
    return _timed(call)


def graph_seconds(calls: Sequence[Call], estimate: float, replays: int = REPLAYS) -> Spread:
    """Seconds per call, of ``replays`` replays of a graph that runs all ``calls`` in turn.

    estimate: seconds of a call, by which short ones are repeated until a replay is long enough to be measured.
    Everything runs once before the capture, on the capture's stream: what a call allocates on first use is then there.
    """
    rounds = math.ceil(LONG_ENOUGH / (max(estimate, SHORTEST) * len(calls)))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    with torch.cuda.graph(graph, stream=stream):
        for call in list(calls) * rounds:
            call()
    for _ in range(WARM_UPS):
        graph.replay()
    each = rounds * len(calls)
    return Spread.of(_timed(graph.replay) / each for _ in range(replays))


def _timed(call: Call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
