"""gemv_half and gemv_int8: how K is shared, what loads cost, large activations, and what they do not take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import HALF_STEP, relative_error, shifted
from torch import Tensor

from labkit.device import use_executor
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.lab.op_counts import count
from labkit.ops.gemv import OUTPUTS, row_class, shares_of_k
from labkit.ops.gemv_half import RUNGS, gemv_half
from labkit.ops.gemv_int8 import gemv_int8
from labkit.quant.int8 import Int8Weight
from labkit.quant.round_to_nearest import to_int8

X, W = torch.ones(2, 64).half(), torch.ones(6, 64).half()
Q = Int8Weight(torch.ones(6, 64, dtype=torch.int8), torch.ones(6, 1).half())


@pytest.mark.parametrize("step", [32, 256, 512])
@pytest.mark.parametrize("outputs", [1, 24, 5120, 248320])
@pytest.mark.parametrize("inputs", [32, 100, 576, 5120, 8704, 17408])
def test_shares_cover_k(outputs: int, inputs: int, step: int) -> None:
    shares, size = shares_of_k(outputs, inputs, step)
    assert size % step == 0 and (shares - 1) * size < inputs <= shares * size
    assert shares == 1 or size >= 2 * step


def test_few_outputs_share_k_and_many_do_not() -> None:
    assert shares_of_k(24, 5120, 256) == (10, 512)
    assert shares_of_k(5120 * OUTPUTS, 5120, 256)[0] == 1


@pytest.mark.parametrize(("rows", "compiled"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8)])
def test_row_class(rows: int, compiled: int) -> None:
    assert row_class(rows) == compiled


def test_the_last_rung_reads_each_weight_once_and_x_seldom(seed: int) -> None:
    x, w = torch.randn(4, 1024).half(), torch.randn(64, 1024).half()
    second, last = (count(gemv_half, x, w, rung=rung).global_load for rung in RUNGS[1:])
    weights, of_x = w.nbytes // 512, x.nbytes // 512  # requests of 32 lanes, 16 bytes each
    assert second.requests == weights + 64 * of_x and second.efficiency == 1
    # A fourth as many for x; what is left over reads no weights: partial sums, and the arrivals of blocks.
    assert 0 < last.requests - (weights + 16 * of_x) <= 64
    int8 = count(gemv_int8, x, to_int8(w)).global_load
    assert int8.requests < last.requests


@pytest.mark.parametrize("rung", RUNGS)
def test_large_activations(seed: int, rung: str) -> None:
    """Sums pass the largest half on the way, and end below it: they are kept in fp32."""
    x = torch.full((2, 1024), 3e4).half()
    x[:, 513:] = -3e4
    w = torch.ones(7, 1024).half()
    with use_executor("sim"):
        y = gemv_half(x, w, residual=torch.full((2, 7), -500.0).half(), rung=rung)
    assert torch.equal(y, torch.full((2, 7), 59500.0).half())  # 2 * 3e4 - 500


def test_a_result_beyond_fp16_is_infinite(seed: int) -> None:
    x, w = torch.full((1, 64), 3e4).half(), torch.ones(3, 64).half()
    with use_executor("sim"):
        assert bool(gemv_half(x, w).isposinf().all()) and bool(gemv_int8(x, to_int8(w)).isposinf().all())


def test_the_residual_joins_before_rounding() -> None:
    """4096 + (2 + 2^-11) is nearer to 4100; with the product rounded first it is 4098, the middle, and goes to 4096."""
    x, residual = torch.zeros(1, 64).half(), torch.full((1, 6), 4096.0).half()
    x[0, 0], x[0, 40] = 2, 2**-11
    with use_executor("sim"):
        for y in (gemv_half(x, W, residual=residual), gemv_int8(x, Q, residual=residual)):
            assert torch.equal(y, torch.full((1, 6), 4100.0).half())


def test_views_are_copied_where_they_must(seed: int) -> None:
    """x and the residual may lie anywhere; they are small."""
    x, w, residual = torch.randn(3, 64).half(), torch.randn(5, 64).half(), torch.randn(3, 5).half()
    apart, turned = torch.empty(3, 65).half()[:, 1:].copy_(x), residual.T.contiguous().T
    exact = x.double() @ w.double().T + residual.double()
    quantized = to_int8(w)
    with use_executor("sim"):
        relative_error(gemv_half(apart, w, residual=turned), exact, HALF_STEP)
        relative_error(gemv_half(shifted(x, 1), w, residual=turned), exact, HALF_STEP)
        y = gemv_int8(shifted(x, 1), quantized, residual=turned)
    relative_error(y, x.double() @ quantized.dequantize().double().T + residual.double(), HALF_STEP)


def test_no_outputs_launch_nothing() -> None:
    with use_executor("sim"):
        assert gemv_half(X, torch.empty(0, 64).half()).shape == (2, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gemv_half(X, torch.ones(6, 32).half()), r"gemv_half: x has shape \[2, 64\].*\[rows, 32\]"),
        (lambda: gemv_half(X.float(), W), "x is float32"),
        (lambda: gemv_half(X, W.float()), "weight is float32"),
        (lambda: gemv_half(torch.ones(9, 64).half(), W), "x has 9 rows; its kernels take 1 to 8"),
        (lambda: gemv_half(torch.ones(0, 64).half(), W), "x has 0 rows"),
        (lambda: gemv_half(torch.ones(64).half(), W), r"x has shape \[64\]"),
        (lambda: gemv_half(X, W.T.contiguous().T), "strides"),
        (lambda: gemv_half(torch.ones(2, 0).half(), torch.ones(6, 0).half()), "at least one"),
        (lambda: gemv_half(X, W, residual=torch.ones(2, 5).half()), r"residual has shape \[2, 5\]"),
        (lambda: gemv_half(X, W, residual=torch.ones(2, 6)), "residual is float32"),
        (lambda: gemv_half(X, W, rung="9_best"), "9_best"),
        (lambda: gemv_int8(torch.ones(2, 32).half(), Q), r"gemv_int8: x has shape \[2, 32\]"),
        (lambda: gemv_int8(torch.ones(9, 64).half(), Q), "x has 9 rows"),
        (lambda: gemv_int8(X, Q, residual=torch.ones(3, 6).half()), "residual has shape"),
        (lambda: gemv_int8(X, Int8Weight(shifted(Q.q, 1), Q.scales)), "multiple of 16 bytes"),
        (lambda: gemv_int8(X, Int8Weight(Q.q.T.contiguous().T, Q.scales)), "not dense"),
        (lambda: gemv_int8(X, Q, rung="9_best"), "9_best"),
    ],
)
def test_what_the_gemvs_do_not_take(call: Callable[[], Tensor], words: str) -> None:
    with use_executor("sim"), pytest.raises((KernelArgumentError, KernelBuildError), match=words):
        call()
