"""attention_prefill where rounding would show: products that cancel, channels that all keys share, enormous scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.ops_attention_decode import exact, paged_with
from helpers.ops_attention_prefill import LSE_ERROR
from helpers.paged import FORMATS, Paged
from torch import Tensor

from labkit.device import use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import simulated_with
from labkit.ops.attention_prefill import RUNGS, attention_prefill
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat
from labkit.sim.options import Options

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

TOKENS = 70  # of one sequence, in two pages
FP32_SCORES = 1e-6  # relative: a few roundings of the largest sum, and its logarithm's
Inputs = tuple[Tensor, Tensor, Tensor]  # k and v [tokens, 1, D], q [rows, 1, D]


def simulated(rung: str, q: Tensor, paged: Paged, scale: float) -> tuple[Tensor, Tensor]:
    """The result and the logarithms of the sums."""
    lse = torch.empty(q.shape[:2])
    with use_executor("sim"), simulated_with(Options(counters=False)):
        return attention_prefill(q, paged.pages, paged.batch([len(q)]), scale=scale, lse=lse, rung=rung), lse


def check(rung: str, q: Tensor, paged: Paged, scale: float) -> None:
    """Logarithms: within LSE_ERROR, or what fp32 can tell of scores so large."""
    out, lse = simulated(rung, q, paged, scale)
    expected, sums = exact(q, paged, [len(q)], scale)
    relative_error(out, expected, QUANTIZED)
    off = ((lse - sums).abs() - FP32_SCORES * sums.abs()).max().item()
    assert off <= LSE_ERROR, f"a logarithm of a sum is off by {off:.1e}, allowed {LSE_ERROR:.1e}"


# --- scores as small differences ------------------------------------------------------------------------------------


def common_channel() -> Inputs:
    """All keys have 100 in one channel, where queries look; another channel sets their scales, each its own."""
    k, v, q = (torch.randn(n, 1, 128).half().float() for n in (TOKENS, TOKENS, 3))
    k[..., 5], k[..., 6] = 100.0, 100 * (1 + torch.rand(TOKENS, 1))
    q[..., 5], q[..., 6] = torch.tensor([[-10.0], [20.0], [33.0]]), 0.0
    return k, v, q


def lone_query_channel() -> Inputs:
    """Queries are large where keys are 0: rotated, all channels are large, and cancel."""
    k, v, q = (torch.randn(n, 1, 128).half().float() for n in (TOKENS, TOKENS, 3))
    k[..., 5], q[..., 5] = 0.0, torch.tensor([[300.0], [1000.0], [-3000.0]])
    return k, v, q


def unlike_parts() -> Inputs:
    """Each 64 elements of keys have a magnitude of their own, queries the opposite: all parts count alike."""
    magnitudes = torch.tensor([0.01, 30.0, 0.3, 500.0]).repeat_interleave(64)
    k, v, q = (torch.randn(n, 1, 256) for n in (TOKENS, TOKENS, 2))
    return (k + 2) * magnitudes, v, q / magnitudes


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("inputs", [common_channel, lone_query_channel])
def test_products_that_cancel(inputs: Callable[[], Inputs], name: str, rung: str, seed: int) -> None:
    k, v, q = inputs()
    rotated = KVPages.zeros(1, 1, 128, KVFormat.named(name, torch.float16)).rotated
    check(rung, rotated(q).half(), paged_with(rotated(k), v, name, rotated=False), 128**-0.5)


@pytest.mark.parametrize("rung", RUNGS)
def test_keys_that_the_rotation_makes_larger_than_a_half(rung: str, seed: int) -> None:
    """All elements alike: one is 113,000 then."""
    k, v, q = (torch.randn(n, 1, 128) for n in (TOKENS, TOKENS, 3))
    paged = paged_with((k + 1e4).half().float(), v, "int4", rotated=True)
    assert paged.pages.k.gather(torch.tensor(paged.tables[0])).isfinite().all()
    check(rung, paged.pages.rotated(0.1 * q).half(), paged, 128**-0.5)


@pytest.mark.parametrize("rung", RUNGS)
def test_parts_of_unlike_magnitude(rung: str, seed: int) -> None:
    k, v, q = unlike_parts()
    check(rung, q.half(), paged_with(k, v, "int4", rotated=False), 256**-0.5)


# --- enormous scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("scale", "sign"), [(20.0, -1.0), (3e3, 1.0)])
def test_enormous_scores(scale: float, sign: float, name: str, rung: str, seed: int) -> None:
    """Near -6e7 or 1e10, where neighbouring floats are 4 or 1024 apart. One key of either page is the nearest: the
    result is the mean of their values, whatever fp32 makes of the others.
    """
    direction = torch.randn(64).sign()
    size = torch.randint(100, 600, (TOKENS, 1)) + (600 if sign < 0 else 0)  # further away
    size[3] = size[67] = 650
    k, v = sign * size[..., None] * direction, torch.randn(TOKENS, 1, 64)
    q = torch.tensor([74.0, 77.0, 79.0])[:, None, None] * direction
    check(rung, q.half(), paged_with(k, v, name, rotated=False), scale)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_keys_of_pages_that_nobody_wrote(name: str, rung: str, seed: int) -> None:
    """They are zeros, scales too: every token weighs the same."""
    v = torch.randn(TOKENS, 1, 128)
    paged = paged_with(torch.zeros(TOKENS, 1, 128), v, name, rotated=False)
    assert paged.pages.k.params is not None
    paged.pages.k.params.zero_()
    paged.pages.k.values.zero_()
    check(rung, torch.randn(2, 1, 128).half(), paged, 128**-0.5)
