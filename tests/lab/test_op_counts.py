"""Counting an operation runs its real kernel, returns its real result, and insists on one launch."""

from __future__ import annotations

import pytest
import torch

from labkit.errors import KernelLaunchError
from labkit.lab.op_counts import count, simulated
from labkit.lab.roofline import counted_point
from labkit.ops import rmsnorm, silu_mul
from labkit.sim.trace import Trace


def test_the_result_is_the_operations(seed: int) -> None:
    x = torch.randn(3, 128).half()
    y, result = simulated(silu_mul.silu_mul, x)
    assert torch.allclose(y.float(), silu_mul.reference(x.float()), rtol=2e-3, atol=2e-3)
    assert result.ok and result.program.kernel.name == "silu_mul"


def test_traffic_and_flops_are_those_of_the_definition() -> None:
    rows, inner = 2, 1024
    point = counted_point("silu_mul", count(silu_mul.silu_mul, torch.randn(rows, 2 * inner).half()))
    assert point.nbytes == 3 * 2 * rows * inner
    assert 4 * rows * inner <= point.flops <= 8 * rows * inner  # negate, exp, add, divide, multiply


def test_settings_reach_the_operation_and_the_trace_is_kept_where_wanted() -> None:
    x, weight = torch.randn(2, 64).half(), torch.ones(64)
    _, plain = simulated(rmsnorm.rmsnorm, x, weight, 1e-6, rung="1_naive")
    _, traced = simulated(rmsnorm.rmsnorm, x, weight, 1e-6, rung="1_naive", trace=True)
    assert not isinstance(plain.counters, Trace)
    assert isinstance(traced.counters, Trace) and traced.counters.accesses


def test_several_launches_or_none_are_refused() -> None:
    x = torch.randn(2, 64).half()

    def twice() -> None:
        silu_mul.silu_mul(x)
        silu_mul.silu_mul(x)

    with pytest.raises(KernelLaunchError, match="twice launched 2 kernels"):
        count(twice)
    with pytest.raises(KernelLaunchError, match="launched 0 kernels"):
        count(lambda: x + x)
