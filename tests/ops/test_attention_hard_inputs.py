"""Decode attention where short cuts in arithmetic show: large channels, outliers in queries and values, huge scores.

Every rung and format against fp64 on what the pages hold, as everywhere; here keys, values and queries are made so that
a product, a weight or a sum that is rounded too early is far off.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.hard_attention import CASES, DIM, LARGEST, Inputs, ordinary
from helpers.ops_attention_decode import LSE_ERROR, exact, paged_with
from helpers.paged import Paged
from torch import Tensor

from labkit.device import use_executor
from labkit.device.sim_executor import simulated_with
from labkit.ops.attention_decode import RUNGS, attention_decode
from labkit.ops.attention_decode_plan import SPLIT_RUNGS
from labkit.sim.options import Options

FORMATS = ("fp16", "int8", "int4")
FAST = RUNGS[-2:]
WIDE, TILE = "4_wide", 32  # the rung that rounds, by a measure of its own, and its tile
FP32_PRODUCTS = 1.05  # a few roundings of 2^-24 beside half a step of 2^-16 of the largest element
LARGE_SUM = 1e-5  # of its logarithm where that is a large number: 64 sums in fp32, each cut off
PLAIN = Options(counters=False)
AS_A_V100_ADDS = Options(counters=False, truncating_mma=True)


def score_error(paged: Paged, q: Tensor, k: Tensor) -> Tensor:
    """By how much the wide rung's scores of q [HEADS, D] with k [tokens, D] may be off, for each head: [HEADS].

    Quantized keys meet a query in steps of a 32,512th of the largest of 64 elements, so a score may be off by half a
    step times the sum of the |k|.
    """
    if paged.pages.k.bits == 16:
        return torch.zeros(len(q), dtype=torch.float64)
    half_steps = q.double().unflatten(-1, (-1, 64)).abs().amax(-1) / 65024
    sums = k.unflatten(-1, (-1, 64)).abs().sum(-1)
    return FP32_PRODUCTS * (half_steps @ sums.T * k.shape[-1] ** -0.5).amax(-1)


def allowed_for_wide(paged: Paged, q: Tensor, seen: int) -> tuple[Tensor, Tensor]:
    """By how much the wide rung may be off for q [HEADS, D], which sees the first tokens: what its docstring admits.

    In the result, besides 2e-3: [HEADS, D]. A tile's weights are halves, the largest a 32nd, the smallest in steps of
    2^-24, and its sums of weights times values are rounded to halves 32 times. In the logarithm of the sum: [HEADS].
    """
    table = torch.tensor(paged.tables[0])
    k, v = (x[0, :seen].double() for x in paged.pages.gather(table))
    weights = (q.double() @ k.T * k.shape[-1] ** -0.5).softmax(-1)
    of_scores = score_error(paged, q, k)
    if paged.pages.v.bits == 8:
        assert paged.pages.v.params is not None
        scales = paged.pages.v.params[table, 0].flatten()[:seen].double()
        weights, v = weights * scales, v / scales[:, None]
    total = torch.zeros(q.shape, dtype=torch.float64)
    for p, values in zip(weights.split(TILE, -1), v.abs().split(TILE), strict=True):
        unit = 32 * p.amax(-1, keepdim=True)
        total += unit * 2**-25 * values.sum(0) + (2**-12 + TILE * 2**-12) * (p @ values)
    off = (2 * of_scores).expm1()  # of a token's weight, and of the sum of all
    return total + off[:, None] * (weights @ v.abs()), of_scores


def check(inputs: Inputs, rung: str, name: str, rotated: bool = False, options: Options = PLAIN) -> None:
    paged = paged_with(inputs.k, inputs.v, name, rotated)
    q = paged.pages.rotated(inputs.q.float()).half() if rotated else inputs.q
    rows, lse, splits = q.shape[0], torch.empty(q.shape[:2]), 2 if rung in SPLIT_RUNGS else None
    with use_executor("sim"), simulated_with(options):
        out = attention_decode(q, paged.pages, paged.batch([rows]), lse=lse, rung=rung, split_count=splits)
    expected, sums = exact(q, paged, [rows], q.shape[-1] ** -0.5)
    assert expected.isfinite().all() and expected.norm() > 0
    if rung != WIDE:
        relative_error(out, expected, QUANTIZED)
        torch.testing.assert_close(lse.double(), sums, rtol=LARGE_SUM, atol=LSE_ERROR)
        return
    for r in range(rows):
        of_result, of_sum = allowed_for_wide(paged, q[r], paged.lengths[0] - rows + r + 1)
        off = (out[r].double() - expected[r]).norm(dim=-1)
        assert (off <= QUANTIZED * expected[r].norm(dim=-1) + of_result.norm(dim=-1)).all()
        assert ((lse[r] - sums[r]).abs() <= of_sum + LARGE_SUM * sums[r].abs() + LSE_ERROR).all()


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rung", RUNGS)
def test_hard_inputs(rung: str, name: str, make: Callable[..., Inputs], seed: int) -> None:
    check(make(), rung, name)


@pytest.mark.parametrize("make", CASES[:3])
@pytest.mark.parametrize("rung", RUNGS)
def test_rotated_keys(rung: str, make: Callable[..., Inputs], seed: int) -> None:
    check(make(), rung, "int4", rotated=True)


@pytest.mark.parametrize("rung", RUNGS)
def test_keys_that_the_rotation_makes_larger_than_a_half(rung: str, seed: int) -> None:
    """All elements alike: one is 80,000 then."""
    inputs = ordinary()
    inputs.k[:] = (inputs.k + 1e4).half().float()
    inputs.q[:] *= 0.1
    check(inputs, rung, "int4", rotated=True)


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize(("dim", "name"), [(128, "k8v4"), (256, "int4"), (256, "int8")])
@pytest.mark.parametrize("rung", FAST)
def test_wide_heads(rung: str, dim: int, name: str, make: Callable[..., Inputs], seed: int) -> None:
    check(make(dim), rung, name)


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize(("dim", "name"), [(64, "fp16"), (64, "int8"), (128, "int4")])
def test_sums_that_are_cut_off(dim: int, name: str, make: Callable[..., Inputs], seed: int) -> None:
    """As a V100's tensor cores do: toward zero, after each four products."""
    check(make(dim), FAST[1], name, options=AS_A_V100_ADDS)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rung", RUNGS)
def test_a_token_that_a_row_does_not_see(rung: str, name: str, seed: int) -> None:
    """The last token's score is thousands above all others, and its value 6e4: the row before knows nothing of it."""
    inputs = ordinary()
    q = inputs.q.sign().repeat(2, 1, 1)
    inputs.k[-1] = 1000 * q[0, 0].float()
    inputs.v[-1] = LARGEST
    check(Inputs(inputs.k, inputs.v, q[:, :1]), rung, name)


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("rung", RUNGS)
def test_values_whose_last_code_would_be_beyond_half_precision(rung: str, name: str, seed: int) -> None:
    """65504 is 127 (or 15) times a step that, rounded up, no half would hold; here nearly all weight lies on it."""
    inputs = ordinary()
    inputs.q[:] = inputs.q[:, :1].sign()
    inputs.k[3] = 10 * DIM**-0.5 * inputs.q[0, 0].float()
    inputs.v[3] = 65504
    inputs.v[3, ..., ::64] = -65504
    check(inputs, rung, name)
