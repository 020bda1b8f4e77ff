"""Blocks that share K: what they count with, when a launch was stopped, in threads, and in a CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
import torch
from helpers.linears import random_int4
from torch import Tensor

from labkit.device import use_executor
from labkit.device.sim_executor import simulated_with
from labkit.errors import KernelLaunchError
from labkit.ops import split_k
from labkit.ops.awq_gemm import awq_gemm
from labkit.ops.awq_gemv import awq_gemv
from labkit.ops.gemv_half import gemv_half
from labkit.ops.gemv_int8 import gemv_int8
from labkit.ops.split_k import FEWEST, arrival_counters
from labkit.quant.pack import pack
from labkit.quant.round_to_nearest import to_int8
from labkit.sim.options import Options

torch.manual_seed(0)
X, DENSE = torch.randn(2, 3136).half(), torch.randn(9, 3136).half()
PACKED, INT8 = pack(random_int4(33, 3136, 64, "scale_zero")), to_int8(DENSE[:, :2048])
SHARING: dict[str, Callable[[], Tensor]] = {
    "awq_gemv 4": lambda: awq_gemv(X, PACKED, rung="4_split_k"),
    "awq_gemv 5": lambda: awq_gemv(X, PACKED, rung="5_integer_dot"),
    "awq_gemm": lambda: awq_gemm(X, PACKED, rung="4_small_m"),
    "gemv_half": lambda: gemv_half(X, DENSE),
    "gemv_int8": lambda: gemv_int8(X[:, :2048], INT8),
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The counters that launches of the test get."""
    counters: list[Tensor] = []

    def noting(_: torch.device, count: int) -> Tensor:
        counters.append(torch.zeros(count, dtype=torch.int32))
        return counters[-1]

    monkeypatch.setattr(split_k, "own_counters", noting)
    return counters


@pytest.mark.parametrize("op", SHARING)
def test_the_result_does_not_depend_on_who_comes_first(op: str, given: list[Tensor]) -> None:
    with use_executor("sim"):
        expected = SHARING[op]()
        assert len(given) == 1  # blocks did share K
        for seed in (1, 2):
            with simulated_with(Options(counters=False, shuffle_seed=seed)):
                assert torch.equal(SHARING[op](), expected)


def test_a_launch_that_was_stopped_leaves_the_next_ones_alone(given: list[Tensor]) -> None:
    with use_executor("sim"):
        expected = SHARING["gemv_half"]()
        for steps in range(5, 60):
            with simulated_with(Options(counters=False, max_steps=steps)), suppress(KernelLaunchError):
                SHARING["gemv_half"]()
        assert any(counters.any() for counters in given)  # some were stopped while blocks arrived
        assert torch.equal(SHARING["gemv_half"](), expected)


def test_threads_do_not_share_counters() -> None:
    found: list[Tensor] = []
    threads = [threading.Thread(target=lambda: found.append(arrival_counters(torch.device("cpu"), 4))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].data_ptr() != found[1].data_ptr() != arrival_counters(torch.device("cpu"), 4).data_ptr()


class Stream:
    cuda_stream = 7


def test_counters_of_a_gpu(given: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer serves all launches of a stream; what a graph captures before there is one stays in that graph."""
    device, capturing = torch.device("cuda", 0), [True]
    monkeypatch.setattr(split_k, "_buffers", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    first, second = (arrival_counters(device, 5) for _ in range(2))
    assert first is not second and [x.numel() for x in given] == [5, 5]
    capturing[0] = False
    kept = arrival_counters(device, 5)
    capturing[0] = True
    assert arrival_counters(device, FEWEST) is kept and [x.numel() for x in given] == [5, 5, FEWEST]
    assert arrival_counters(device, FEWEST + 1) is not kept
    assert arrival_counters(device, 9) is kept
