"""awq_gemv beyond the shapes of test_kernels.py: precision next to outliers, how K is shared, what it refuses."""

from __future__ import annotations

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_gemv import check_unseen_outlier, random_int4
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import KernelArgumentError
from labkit.lab.op_counts import count
from labkit.ops import multiprocessors
from labkit.ops.awq_gemv import RUNGS, awq_gemv, blocks_of_last_rung, macros, shares_of_k
from labkit.ops.checks import WARP
from labkit.quant.int4 import Int4Weight
from labkit.quant.pack import PackedInt4, pack

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


@pytest.mark.parametrize(
    ("columns", "batches", "size", "blocks"),
    [
        (40, 136, 1, 160),  # four shares of each column
        (68, 40, 2, 340),  # five
        (20, 24, 8, 60),  # three: two batches for each warp
        (68, 40, 4, 80),  # one block for each of 80 multiprocessors
        (1, 34, 4, 34),  # no more than batches
        (1, 1, 4, 1),  # never none
        (2**17, 2**10, 8, 31),  # batches times blocks fit 32 bits
        (2**13, 64, 1, 8191),  # and there too
    ],
)
def test_how_many_blocks_divide_a_weight(columns: int, batches: int, size: int, blocks: int) -> None:
    assert blocks_of_last_rung(columns, batches, size, warps_of(size), CPU) == blocks


@pytest.mark.parametrize(
    ("outputs", "inputs", "aligned"),
    [
        (34816, 5120, False),
        (17408, 5120, False),
        (16384, 5120, True),
        (14336, 5120, True),
        (5120, 17408, False),
        (8192, 5120, True),
        (7168, 5120, False),
        (5120, 8704, False),
        (5120, 6144, False),
        (5120, 3072, True),
    ],
)
def test_shares_on_132_multiprocessors(
    outputs: int, inputs: int, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shapes of the model that the rule was tried on: a block for each column, or one for each multiprocessor."""
    monkeypatch.setattr(multiprocessors, "_processors", lambda index: 132)
    columns, batches, gpu = outputs // 64, inputs // 128, torch.device("cuda", 0)
    assert blocks_of_last_rung(columns, batches, 4, warps_of(4), gpu) == (columns if aligned else 132)
    for size in (1, 2, 8):
        of_class = columns * (2 if size == 1 else 1)
        assert blocks_of_last_rung(of_class, batches, size, warps_of(size), gpu) % of_class == 0


def warps_of(size: int) -> int:
    return macros(128, "scale_zero", size)["WARPS"]


@pytest.mark.parametrize("outliers", [0, 1, 23, 24, 128])
def test_x_of_every_kind_keeps_its_precision(outliers: int, seed: int) -> None:
    """Two bytes of x or three, in one row or another: rows of both kinds side by side, outliers that count."""
    weight, x = random_int4(48, 256, 128, "scale_zero", "cpu"), torch.randn(4, 256).half()
    x[1, torch.randperm(128)[:outliers]] = 3e2
    x[3] *= 2.0**-18
    with use_executor("sim"):
        y = awq_gemv(x, pack(weight))
    relative_error(y.float(), x.double() @ weight.dequantize().double().T, QUANTIZED)


@pytest.mark.parametrize("size", [30.0, 100.0, 128.0, 300.0, 3000.0])
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_an_outlier_in_each_lane_whose_weights_are_zero(rows: int, size: float, seed: int) -> None:
    """A quarter of x, one of the four inputs that a lane splits, is large and counts in no result."""
    weight = random_int4(64, 512, 128, "scale_zero", "cpu")
    groups = weight.groups.clone()
    groups[..., 1].clamp_(max=15)
    large = torch.arange(512) % 8
    large = (large == 5) | (large == 7)  # lanes split inputs 0 1 4 5 of eight or 2 3 6 7
    zeros = groups[..., 1].to(torch.uint8).repeat_interleave(128, dim=1)
    weight = Int4Weight.from_nibbles(torch.where(large, zeros, weight.unpack()), groups, "scale_zero")
    x = (torch.rand(rows, 512) + 1) * (2 * torch.randint(0, 2, (rows, 512)) - 1)
    x[:, large] = size
    with use_executor("sim"):
        y = awq_gemv(x.half(), pack(weight))
    relative_error(y.float(), x.half().double() @ weight.dequantize().double().T, QUANTIZED)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_tame_x_takes_two_bytes_and_an_outlier_a_third_in_its_batch(rows: int) -> None:
    """Every batch of 128 inputs multiplies as many bytes of x as it needs: counted in dp4a, four products each."""
    weight = pack(random_int4(64, 512, 128, "scale_zero", "cpu"))
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(2)).half()  # none too uneven
    of_a_byte = rows * 64 * 128 // 4 // WARP  # in one batch
    assert dp4a_of(x, weight) == 4 * 2 * of_a_byte
    x[-1, 130] = 3e2
    assert dp4a_of(x, weight) == (3 * 2 + 3) * of_a_byte
    x[0, 260:380] = 0  # of the next batch most is far from its largest
    assert dp4a_of(x, weight) == (2 * 2 + 2 * 3) * of_a_byte


def dp4a_of(x: Tensor, weight: PackedInt4) -> int:
    """How often warps execute the instruction."""
    sites = count(awq_gemv, x, weight).by_site()
    return sum(counts.warp_instructions for site, counts in sites if site.text.startswith("dp4a"))


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
