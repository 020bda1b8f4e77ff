"""Decode attention where short cuts in arithmetic show: large channels, outliers in queries and values, huge scores.

Every rung and format against fp64 on what the pages hold, as everywhere; here keys, values and queries are made so that
a product, a weight or a sum that is rounded too early is far off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_attention_decode import LSE_ERROR, exact, paged_with
from helpers.paged import Paged
from torch import Tensor

from labkit.device import use_executor
from labkit.device.sim_executor import simulated_with
from labkit.ops.attention_decode import RUNGS, attention_decode
from labkit.sim.options import Options

TOKENS, DIM, HEADS = 70, 64, 2  # more than a page and two tiles
CHANNEL = 5
FORMATS = ("fp16", "int8", "int4")
FAST = RUNGS[-2:]
WIDE, TILE = "4_wide", 32  # the rung that rounds, by a measure of its own, and its tile
LARGEST = 6e4  # near the end of half precision
LARGE_SUM = 1e-5  # of its logarithm where that is a large number: 64 sums in fp32, each cut off
PLAIN = Options(counters=False)
AS_A_V100_ADDS = Options(counters=False, truncating_mma=True)


@dataclass(frozen=True)
class Inputs:
    """Keys and values of TOKENS tokens [tokens, 1, D], fp32; queries of the last of them [1, HEADS, D], fp16."""

    k: Tensor
    v: Tensor
    q: Tensor


def ordinary(dim: int = DIM) -> Inputs:
    k, v = (torch.randn(TOKENS, 1, dim).half().float() for _ in range(2))
    return Inputs(k, v, torch.randn(1, HEADS, dim).half())


def channel_of_all_keys(dim: int = DIM) -> Inputs:
    """A channel that is large in all keys says nothing, but sets the step of all others."""
    inputs = ordinary(dim)
    inputs.k[..., CHANNEL] = 100
    inputs.q[..., CHANNEL] = 10
    return inputs


def channel_that_sets_the_scale(dim: int = DIM) -> Inputs:
    """The same, and another channel, of which the query wants nothing, is larger still and differs among keys."""
    inputs = channel_of_all_keys(dim)
    inputs.k[..., CHANNEL + 1] = 100 * (1 + torch.rand(TOKENS, 1))
    inputs.q[..., CHANNEL + 1] = 0
    return inputs


def query_with_an_outlier(dim: int = DIM) -> Inputs:
    """One element is 300 times as large as the others, which decide: keys are small there."""
    inputs = ordinary(dim)
    inputs.q[..., CHANNEL] = 300
    inputs.k[..., CHANNEL] *= 0.01
    return inputs


def query_with_the_largest_outlier(dim: int = DIM) -> Inputs:
    """6e4 beside 1, where all keys are 0; keys are such that INT4 holds them, and this 0, exactly."""
    inputs = ordinary(dim)
    inputs.k[:] = torch.randint(-7, 9, inputs.k.shape) / 4
    inputs.k[..., 7::32], inputs.k[..., 8::32] = -7 / 4, 2
    inputs.k[..., CHANNEL] = 0
    inputs.q[..., CHANNEL] = LARGEST
    return inputs


def small_query_and_large_keys(dim: int = DIM) -> Inputs:
    inputs = ordinary(dim)
    return Inputs(inputs.k * 1e4, inputs.v, (inputs.q.float() * 1e-4).half())


def keys_of_all_sizes(dim: int = DIM) -> Inputs:
    inputs = ordinary(dim)
    return Inputs(inputs.k * 10 ** torch.empty(TOKENS, 1, 1).uniform_(-3, 1), inputs.v, inputs.q)


def large_value_of_small_weight(dim: int = DIM) -> Inputs:
    """6e4 with weights of e^-8 to e^-22: its part of the sum is above, about and below that of the others."""
    inputs = ordinary(dim)
    for token, below in ((3, 8.0), (40, 11.0), (41, 16.0), (66, 22.0)):
        inputs.k[token] = -below * dim**-0.5 * inputs.q[0, 0].float().sign()
        inputs.v[token] = LARGEST * torch.randn(dim).sign()
    inputs.q[:] = inputs.q[:, :1].sign()
    inputs.k[0] = 0
    return inputs


def values_of_all_sizes(dim: int = DIM) -> Inputs:
    """Of tokens: the larger a value, the less it weighs; and in each token the columns differ."""
    inputs = ordinary(dim)
    sizes = torch.linspace(-5, 4, TOKENS)[torch.randperm(TOKENS)]
    inputs.q[:] = inputs.q[:, :1].sign()
    inputs.k[:] = (-sizes * 2.3)[:, None, None] * dim**-0.5 * inputs.q[0, 0].float()
    inputs.v[:] = inputs.v.clamp(-4, 4) * 10 ** sizes[:, None, None]
    return inputs


def heavy_token_of_no_value(dim: int = DIM) -> Inputs:
    """It weighs e^17 times as much as each other, and its value is 0: the others are the result."""
    inputs = ordinary(dim)
    inputs.q[:] = inputs.q[:, :1].sign()
    inputs.k[:], inputs.v[9] = 0, 0
    inputs.k[9] = 17 * dim**-0.5 * inputs.q[0, 0].float()
    inputs.v[:] *= 1e4
    return inputs


def huge_scores(dim: int = DIM, sign: int = 1) -> Inputs:
    """6e7 for two equal keys, which share the weight; hundreds of thousands less for all others."""
    inputs = ordinary(dim)
    inputs.q[:] = 6e7 / (3.2e4 * dim**0.5)
    inputs.k[:] = sign * 3.2e4
    others = torch.ones(TOKENS, dtype=torch.bool)
    others[[7, 66]] = False
    inputs.k[others] -= 640
    return inputs


def huge_negative_scores(dim: int = DIM) -> Inputs:
    return huge_scores(dim, -1)


CASES: tuple[Callable[..., Inputs], ...] = (
    channel_of_all_keys,
    channel_that_sets_the_scale,
    query_with_an_outlier,
    query_with_the_largest_outlier,
    small_query_and_large_keys,
    keys_of_all_sizes,
    large_value_of_small_weight,
    values_of_all_sizes,
    heavy_token_of_no_value,
    huge_scores,
    huge_negative_scores,
)


def allowed_for_wide(paged: Paged, q: Tensor) -> Tensor:
    """By how much the wide rung may be off, [HEADS, D], besides 2e-3: what its docstrings admit, and no more.

    Quantized keys meet a query in steps of a 65,024th of the largest of 64 elements, so a score may be off by half a
    step times the sum of the |k|. A tile's weights are halves, the largest a 32nd, the smallest in steps of 2^-24, and
    its sums of weights times values are rounded to halves 32 times.
    """
    table = torch.tensor(paged.tables[0])
    k, v = (x[0, : paged.lengths[0]].double() for x in paged.pages.gather(table))
    scores = q[0].double() @ k.T * k.shape[-1] ** -0.5
    weights, of_scores = scores.softmax(-1), torch.zeros(())
    if paged.pages.k.bits < 16:
        steps = q[0].double().unflatten(-1, (-1, 64)).abs().amax(-1) / 65024
        of_scores = (steps @ k.unflatten(-1, (-1, 64)).abs().sum(-1).T * k.shape[-1] ** -0.5).max()
    if paged.pages.v.bits == 8:
        assert paged.pages.v.params is not None
        scales = paged.pages.v.params[table, 0].flatten()[: len(v)].double()
        weights, v = weights * scales, v / scales[:, None]
    total = torch.zeros(q.shape[1:], dtype=torch.float64)
    for p, values in zip(weights.split(TILE, -1), v.abs().split(TILE), strict=True):
        unit = 32 * p.amax(-1, keepdim=True)
        total += unit * 2**-25 * values.sum(0) + (2**-12 + TILE * 2**-12) * (p @ values)
    exact_out = weights @ v
    return total + 2 * of_scores * exact_out.norm(dim=-1, keepdim=True).clamp_min((weights @ v.abs()).norm())


def check(inputs: Inputs, rung: str, name: str, rotated: bool = False, options: Options = PLAIN) -> None:
    paged = paged_with(inputs.k, inputs.v, name, rotated)
    q = paged.pages.rotated(inputs.q.float()).half() if rotated else inputs.q
    rows = [q.shape[0]]
    lse = torch.empty(q.shape[:2])
    with use_executor("sim"), simulated_with(options):
        out = attention_decode(q, paged.pages, paged.batch(rows), lse=lse, rung=rung, split_count=2)
    expected, sums = exact(q, paged, rows, q.shape[-1] ** -0.5)
    assert expected.isfinite().all() and expected.norm() > 0
    if rung != WIDE:
        relative_error(out, expected, QUANTIZED)
        torch.testing.assert_close(lse.double(), sums, rtol=LARGE_SUM, atol=LSE_ERROR)
        return
    off = (out[0].double() - expected[0]).norm(dim=-1)
    assert (off <= QUANTIZED * expected[0].norm(dim=-1) + allowed_for_wide(paged, q).norm(dim=-1)).all()


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rung", RUNGS)
def test_hard_inputs(rung: str, name: str, make: Callable[..., Inputs], seed: int) -> None:
    check(make(), rung, name)


@pytest.mark.parametrize("make", CASES[:3])
@pytest.mark.parametrize("rung", RUNGS)
def test_rotated_keys(rung: str, make: Callable[..., Inputs], seed: int) -> None:
    check(make(), rung, "int4", rotated=True)


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
