"""Keys, values and queries where short cuts of attention in arithmetic show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS, DIM, HEADS = 70, 64, 2  # more than a page and two tiles
CHANNEL = 5
LARGEST = 6e4  # near the end of half precision


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


def nearly_tied(q_size: float, k_size: float, dim: int) -> Inputs:
    """Gaussian, without outliers; two unlike keys with a score of 500 each, twice as much as the next: what becomes of
    the scores decides how they share the weight.
    """
    inputs = ordinary(dim)
    inputs.k[:], inputs.q[:] = inputs.k * k_size, inputs.q * q_size
    q = inputs.q[0, 0].float()
    for token in (7, 66):
        score = inputs.k[token, 0] @ q * dim**-0.5
        inputs.k[token] += (500 - score) * dim**0.5 / (q @ q) * q
    return inputs


def large_scores_of_tied_tokens(dim: int = DIM) -> Inputs:
    return nearly_tied(10, 10, dim)


def large_keys_of_tied_tokens(dim: int = DIM) -> Inputs:
    return nearly_tied(1, 100, dim)


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
    large_scores_of_tied_tokens,
    large_keys_of_tied_tokens,
)
