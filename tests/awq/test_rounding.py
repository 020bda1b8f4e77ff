"""Rounding to 16 levels: the nearest value of the grid, a grid that holds zero, scales that half precision holds."""

from __future__ import annotations

import pytest
import torch
from helpers.packers import dequantize_rows, quantize_rows

from labkit.awq.rounding import Grid, grouped, quantize, rounded
from labkit.errors import UnsupportedModelError


@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_same_numbers_as_the_tests_own_quantizer(seed: int, group: int) -> None:
    weight = torch.randn(24, 2 * group) * torch.rand(24, 1)
    q, zero, scale = quantize_rows(weight, group)
    ours = quantize("m", weight, group)
    assert torch.equal(ours.groups[..., 0], torch.from_numpy(scale)) and ours.group_size == group
    assert torch.equal(ours.groups[..., 1].long(), torch.from_numpy(zero))
    assert torch.equal(ours.unpack().long(), torch.from_numpy(q))
    assert torch.equal(rounded(weight, group), dequantize_rows(q, zero, scale))


def test_nothing_on_the_grid_is_nearer(seed: int) -> None:
    groups = grouped(torch.randn(8, 64), 32)
    grid = Grid.of(groups)
    levels = (torch.arange(16)[:, None, None, None] - grid.zero) * grid.scale
    nearest = (levels - groups).abs().amin(0)
    assert torch.allclose((grid.rounded(groups) - groups).abs(), nearest, atol=1e-6)
    assert float(nearest.max()) <= 0.51 * float(grid.scale.max())


@pytest.mark.parametrize("shift", [-30.0, -0.5, 0.0, 0.5, 30.0])
def test_zero_stays_zero_and_the_ends_are_reached(seed: int, shift: float) -> None:
    """A group that lies on one side of 0 has its grid from 0 to its far end."""
    weight = torch.rand(16, 64) + shift
    weight[:, ::7] = 0
    got = rounded(weight, 64)
    assert bool((got[:, ::7] == 0).all())
    spread = weight.amax(1) - weight.amin(1)
    assert bool(((got - weight).abs().amax(1) <= spread / 15 * 0.51).all())


def test_a_group_of_zeros_and_one_of_tiny_numbers(seed: int) -> None:
    weight = torch.zeros(2, 64)
    weight[1] = torch.randn(64) * 1e-5
    int4 = quantize("m", weight, 32)
    assert int4.dequantize()[0].abs().max() == 0
    assert int4.groups.isfinite().all() and float((int4.dequantize() - weight).abs().max()) < 2e-6


def test_a_clipped_range_is_that_much_smaller(seed: int) -> None:
    groups = grouped(torch.randn(4, 64), 32)
    share = torch.full((4, 2, 1), 0.5)
    share[0] = 1
    whole, cut = Grid.of(groups), Grid.of(groups, share)
    assert torch.equal(cut.scale[0], whole.scale[0])
    assert torch.allclose(cut.scale[1:], whole.scale[1:] / 2, rtol=2e-3)


def test_a_scale_beyond_half_is_refused() -> None:
    weight = torch.full((8, 32), 2e6)
    with pytest.raises(UnsupportedModelError, match=r"layer\.x has weights too large.*--skip"):
        quantize("layer.x", weight, 32)
