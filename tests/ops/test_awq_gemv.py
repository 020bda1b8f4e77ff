"""awq_gemv beyond the shapes of test_kernels.py: precision next to outliers, how K is shared, what it refuses."""

from __future__ import annotations

import pytest
import torch
from helpers.ops_gemv import check_unseen_outlier, random_int4

from labkit.device import use_executor
from labkit.errors import KernelArgumentError
from labkit.ops.awq_gemv import RUNGS, awq_gemv, shares_of_k
from labkit.quant.pack import pack

CPU = torch.device("cpu")  # the simulator stands for a V100, with 80 multiprocessors


@pytest.mark.parametrize("rung", RUNGS)
def test_an_outlier_whose_weights_are_zero(rung: str, seed: int) -> None:
    with use_executor("sim"):
        check_unseen_outlier(rung, "cpu")


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_row_that_is_not_finite_stays_so_and_alone(rung: str, bad: float, seed: int) -> None:
    weight, x = random_int4(32, 256, 128, "scale_zero", "cpu"), torch.randn(3, 256).half()
    x[1, 77] = bad
    with use_executor("sim"):
        y = awq_gemv(x, pack(weight), rung=rung)
    assert not y[1].isfinite().any() and y[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("columns", "steps", "warps", "shares"),
    [
        (160, 136, 4, 1),  # two even rounds of 80 multiprocessors: no shares for two
        (130, 136, 4, 2),  # uneven ones: for two
        (80, 136, 4, 4),  # even, but a quarter of the warps
        (100, 136, 4, 3),  # 16 warps a multiprocessor
        (100, 16, 4, 2),  # but two steps for each warp
        (1, 4, 8, 1),  # never none
    ],
)
def test_how_blocks_share_k(columns: int, steps: int, warps: int, shares: int) -> None:
    assert shares_of_k(columns, steps, warps, CPU) == shares


def test_the_same_bits_whatever_the_order_of_blocks(seed: int) -> None:
    from labkit.device.sim_executor import simulated_with
    from labkit.sim.options import Options

    weight, x = pack(random_int4(24, 3200, 64, "scale_zero", "cpu")), torch.randn(2, 3200).half()
    results = []
    for order in (1, 2):
        with use_executor("sim"), simulated_with(Options(counters=False, shuffle_seed=order)):
            results.append(awq_gemv(x, weight))
    assert torch.equal(*results)


def test_what_silu_mul_does_not_take() -> None:
    x = torch.ones(1, 128).half()
    weight = pack(random_int4(72, 128, 128, "scale_zero", "cpu"))
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="multiple of 64"):
        awq_gemv(x, weight, silu_mul=True)
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="with a residual"):
        awq_gemv(x, weight, silu_mul=True, residual=torch.ones(1, 72).half())
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="9 rows"):
        awq_gemv(torch.ones(9, 128).half(), weight)
