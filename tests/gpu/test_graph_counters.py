"""Split-K kernels in CUDA graphs that were captured before their stream had counters of arrived blocks."""

from __future__ import annotations

import pytest
import torch

from labkit.ops import split_k
from labkit.ops.gemv_half import gemv_half


def test_graphs_may_run_in_any_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The one that was captured last runs first, so it cannot count on what the first would have set to 0."""
    x, weight = torch.randn(1, 5120).half().cuda(), torch.randn(24, 5120).half().cuda()
    expected = gemv_half(x, weight)
    monkeypatch.setattr(split_k, "_buffers", {})
    stream, captured = torch.cuda.Stream(), []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = gemv_half(x, weight)
        captured.append((graph, y))
    for graph, y in reversed(captured):
        for _ in range(2):
            y.zero_()
            graph.replay()
            assert torch.equal(y, expected)
