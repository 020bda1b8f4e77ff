"""awq_gemm: what the common checks of rungs leave open: exact weights, large activations, splits, odd arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_gemm import check_awq_gemm, random_weight
from torch import Tensor

from labkit.device import sources, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches, simulated_with
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.awq_gemm import RUNGS, awq_gemm, macros, reference, splits
from labkit.ops.dequant_int4 import reference as dequantized
from labkit.ops.ladders import LADDERS
from labkit.quant.int4 import Form, Int4Weight
from labkit.quant.pack import PackedInt4, pack
from labkit.sim.options import Options

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

QUIET = Options(counters=False)


def simulated(x: Tensor, weight: PackedInt4, rung: str | None = None) -> Tensor:
    with use_executor("sim"), simulated_with(QUIET):
        return awq_gemm(x, weight, rung=rung)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("group", "form"), [(64, "scale_zero"), (32, "scale_bias")])
def test_weights_are_those_of_dequant_int4(rung: str, group: int, form: Form, seed: int) -> None:
    """Bit for bit: a row of x that is 1 in one place and 0 elsewhere picks one input's weights."""
    weight = pack(random_weight(40, 128, group, form))
    picked = simulated(torch.eye(128).half()[::3], weight, rung)
    assert torch.equal(picked, dequantized(weight).T[::3])


@pytest.mark.parametrize(
    ("rung", "shape"),
    [
        ("4_small_m", (2, 96, 512, 128, "scale_zero", 0)),
        ("4_small_m", (3, 61, 768, 64, "scale_bias", 0)),
        ("4_small_m", (4, 128, 1024, 32, "scale_zero", 0)),
        ("4_small_m", (8, 64, 256, 64, "scale_zero", 0)),
        ("4_small_m", (16, 66, 256, 128, "scale_bias", 0)),
        ("1_one_warp", (8, 36, 64, 64, "scale_bias", 0)),
        ("2_swizzled", (64, 100, 128, 128, "scale_bias", 0)),
        ("3_double_buffer", (16, 131, 96, 32, "scale_zero", 0)),
        ("5_large_tile", (64, 24, 128, 128, "scale_bias", 0)),
        ("5_large_tile", (130, 257, 96, 32, "scale_zero", 0)),
    ],
)
def test_more_shapes(rung: str, shape: tuple[Any, ...], seed: int) -> None:
    with use_executor("sim"), simulated_with(QUIET):
        check_awq_gemm(rung, shape, "cpu")


@pytest.mark.parametrize(("rung", "inputs"), [*((rung, 1024) for rung in RUNGS[:-1]), (RUNGS[-1], 256)])
def test_sums_that_are_cut_off_as_a_v100_does(rung: str, inputs: int, seed: int) -> None:
    with use_executor("sim"), simulated_with(Options(counters=False, truncating_mma=True)):
        check_awq_gemm(rung, (9, 33, inputs, 128, "scale_zero", 0), "cpu")


def large_sums(signs: Tensor) -> tuple[Tensor, Tensor]:
    """x about 3e4 and q - z in 1 .. 7 with s = 1/128, times a sign for each input: products of 230 to 1600."""
    inputs = len(signs)
    x = (3e4 * (1 - torch.rand(12, inputs) / 8)).half()
    return x, (torch.randint(1, 8, (40, inputs)) * signs).int()


def exact_weight(difference: Tensor) -> Int4Weight:
    """q - 8 = difference, s = 1/128: no rounding anywhere."""
    groups = torch.tensor([1 / 128, 8.0]).half().expand(len(difference), difference.shape[1] // 64, 2)
    return Int4Weight.from_nibbles((difference + 8).to(torch.uint8), groups.contiguous(), "scale_zero")


@pytest.mark.parametrize("rung", RUNGS)
def test_sums_beyond_fp16_on_the_way_to_a_result_that_fits(rung: str, seed: int) -> None:
    """After half of the inputs a sum is about 3e5, and the other half brings it back."""
    x, difference = large_sums(torch.ones(640).sub_((torch.arange(640) >= 320) * 2))
    y = simulated(x, pack(exact_weight(difference)), rung)
    exact = x.double() @ (difference.double() / 128).T
    assert (x[:, :320].double() @ difference[:, :320].double().T / 128).min() > 2 * 65504
    fits = exact.abs() < 65504
    assert fits.float().mean() > 0.9
    torch.testing.assert_close(y[fits].double(), exact[fits], rtol=6e-4, atol=0.5)


@pytest.mark.parametrize("rung", RUNGS)
def test_results_beyond_fp16_are_infinite(rung: str, seed: int) -> None:
    x, difference = large_sums(torch.ones(640))
    weight = pack(exact_weight(difference))
    y = simulated(x, weight, rung)
    assert torch.equal(y, torch.full_like(y, float("inf"))) and torch.equal(y, reference(x, weight))


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("bad", [0, 9])
def test_a_row_keeps_its_nan_to_itself(rung: str, bad: int, seed: int) -> None:
    """The last row also stands in for those that the tile has too many."""
    x, weight = torch.randn(10, 64).half(), pack(random_weight(33, 64, 32, "scale_zero"))
    x[bad, 5] = float("nan")
    y = simulated(x, weight, rung)
    assert torch.equal(y.isnan().all(-1), torch.arange(10) == bad)
    assert torch.equal(y.isnan().any(-1), torch.arange(10) == bad)


# --- launches -------------------------------------------------------------------------------------------------------


def test_blocks_share_long_inputs() -> None:
    assert splits(1, 24, 5120) == 20  # two steps for each of the four warps
    assert splits(16, 5120, 8704) == 4
    assert splits(1, 17408, 5120) == 2
    assert splits(1, 248320, 5120) == splits(1, 24, 64) == 1


def test_split_sums_do_not_depend_on_who_comes_first(seed: int) -> None:
    """And the counters are zero again, or the second launch would come to no end."""
    x, weight = torch.randn(20, 1024).half(), pack(random_weight(70, 1024, 128, "scale_zero"))
    assert splits(20, 70, 1024) == 4
    results = []
    for order in range(3):
        with use_executor("sim"), simulated_with(Options(counters=False, shuffle_seed=order)):
            results.append(awq_gemm(x, weight, rung="4_small_m"))
    assert torch.equal(results[0], results[1]) and torch.equal(results[1], results[2])


@pytest.mark.parametrize(("count", "rung"), [(1, "4_small_m"), (16, "4_small_m"), (17, "5_large_tile")])
def test_the_rung_follows_the_rows(count: int, rung: str, seed: int) -> None:
    weight = pack(random_weight(33, 64, 64, "scale_zero"))
    with use_executor("sim"), recorded_launches(QUIET) as results:
        awq_gemm(torch.randn(count, 64).half(), weight)
    assert [result.program.text for result in results] == [sources.read_rung("awq_gemm", rung).text]
    assert rung in LADDERS["awq_gemm"].in_use


def test_leading_dimensions_and_strides_of_x(seed: int) -> None:
    x, weight = torch.randn(2, 3, 256).half()[..., ::2], pack(random_weight(40, 128, 64, "scale_zero"))
    y = simulated(x, weight)
    assert y.shape == (2, 3, 40)
    relative_error(y, reference(x, weight).double(), QUANTIZED)


def test_no_rows() -> None:
    weight = pack(random_weight(40, 128, 64, "scale_zero"))
    for y in (simulated(torch.empty(0, 128).half(), weight), awq_gemm(torch.empty(0, 128).half(), weight)):
        assert y.shape == (0, 40) and y.dtype == torch.float16


def test_macros() -> None:
    assert macros(128, "scale_zero") == {"GROUP": 128, "SCALE_BIAS": 0}
    assert macros(32, "scale_bias") == {"GROUP": 32, "SCALE_BIAS": 1}


ODD = torch.empty(2 * 288 + 1, dtype=torch.int32)[1:].view(2, 1, 288)
WEIGHT = pack(Int4Weight(torch.zeros(40, 32, dtype=torch.uint8), torch.ones(40, 1, 2).half(), "scale_zero"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: awq_gemm(torch.ones(2, 64), WEIGHT), "x is float32; its kernels take float16"),
        (lambda: awq_gemm(torch.ones(2, 32).half(), WEIGHT), r"x has shape \[2, 32\]"),
        (lambda: awq_gemm(torch.tensor(1.0).half(), WEIGHT), "no dimensions"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), torch.ones(40, 64).half()), "the weight is a Tensor"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), PackedInt4(WEIGHT.data, 80, 64, "scale_zero")), "expected is"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), PackedInt4(WEIGHT.data, 40, 32, "scale_zero")), "expected is"),
        (lambda: awq_gemm(torch.ones(2, 0).half(), PackedInt4(WEIGHT.data[:, :0], 40, 64, "scale_zero")), "expected"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), PackedInt4(WEIGHT.data.float(), 40, 64, "scale_zero")), "float32"),
        (lambda: awq_gemm(torch.ones(2, 48).half(), PackedInt4(WEIGHT.data, 40, 48, "scale_zero")), "32, 64 or 128"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), PackedInt4(ODD, 40, 64, "scale_zero")), "multiple of 16 bytes"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), WEIGHT, rung="6_best"), "6_best"),
        (lambda: awq_gemm(torch.ones(2, 64).half(), WEIGHT, rung=4), "the rung is 4"),  # type: ignore[arg-type]
    ],
)
def test_what_the_kernels_do_not_take(call: Callable[[], object], words: str) -> None:
    with use_executor("sim"), pytest.raises((KernelArgumentError, KernelBuildError), match=words):
        call()
