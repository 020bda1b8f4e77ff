"""The searches find what they look for, and their losses are what they say."""

from __future__ import annotations

import pytest
import torch

from labkit.awq.observe import Inputs
from labkit.awq.rounding import Grid, grouped, rounded
from labkit.awq.search import SHARES, Readers, best_scale, best_shares, scale_candidates

GROUP = 32


def _observed(x: torch.Tensor, step: int = 1) -> Inputs:
    inputs = Inputs(GROUP, step)
    for part in x.split(50):
        inputs.add(part)
    return inputs


@pytest.fixture
def x(seed: int) -> torch.Tensor:
    """Inputs of which three are loud."""
    x = torch.randn(300, 64)
    x[:, torch.randperm(64)[:3]] *= 30
    return x


def test_inputs_are_summed_up(x: torch.Tensor) -> None:
    inputs = _observed(x, step=7)
    assert torch.allclose(inputs.mean, x.abs().mean(0))
    assert torch.equal(inputs.rows, x[::7])
    blocks = x.T @ x
    assert inputs.gram is not None
    for i, gram in enumerate(inputs.gram):
        part = slice(i * GROUP, (i + 1) * GROUP)
        assert torch.allclose(gram, blocks[part, part], rtol=1e-4, atol=1e-2)
    assert _observed(torch.randn(10, 33)).gram is None


def test_the_loss_of_a_candidate_is_the_error_of_its_output(x: torch.Tensor) -> None:
    weights = {"a": torch.randn(16, 64), "b": torch.randn(8, 64) * 3}
    found = scale_candidates(Readers(weights, torch.arange(64), GROUP), _observed(x))
    assert len(found) == 40 and found[0].alpha == 0 and torch.equal(found[0].scale, torch.ones(64))
    for candidate in found[::7]:
        loss = 0.0
        for weight in weights.values():
            got = (x / candidate.scale) @ rounded(weight * candidate.scale, GROUP).T
            loss += float((got - x @ weight.T).square().sum() / (x @ weight.T).square().sum())
        assert candidate.loss == pytest.approx(loss, rel=1e-3)


def test_loud_inputs_get_a_scale(x: torch.Tensor) -> None:
    readers = Readers({"a": torch.randn(48, 64)}, torch.arange(64), GROUP)
    plain = scale_candidates(readers, _observed(x))[0].loss
    best = best_scale(readers, _observed(x))
    loud = x.abs().mean(0) > 10
    assert best.loss < 0.6 * plain
    assert float(best.scale[loud].min()) > float(best.scale[~loud].max())


def test_tied_inputs_share_a_scale(x: torch.Tensor) -> None:
    tie = torch.arange(64) % 16
    readers = Readers({"a": torch.randn(48, 64)}, tie, GROUP)
    assert best_scale(readers, _observed(x)).scale.shape == (16,)
    assert torch.allclose(readers.tied_mean(x.abs().mean(0)), x.abs().mean(0).view(4, 16).mean(0))


def test_a_silent_input_makes_no_infinity(x: torch.Tensor) -> None:
    x[:, 5] = 0
    weight = torch.randn(16, 64)
    weight[:, 9] = 0
    for candidate in scale_candidates(Readers({"a": weight}, torch.arange(64), GROUP), _observed(x)):
        assert bool(candidate.scale.isfinite().all()) and bool((candidate.scale > 0).all())


def test_every_group_keeps_the_share_that_loses_least(x: torch.Tensor) -> None:
    weight = torch.randn(20, 64)
    weight[::3, 7] *= 4  # an outlier, at an input that is as quiet as others
    inputs = _observed(x)
    assert inputs.gram is not None
    shares = best_shares(weight, inputs.gram, GROUP)
    groups = grouped(weight, GROUP)
    losses = []
    for share in SHARES:
        error = (Grid.of(groups, share).rounded(groups) - groups).transpose(0, 1)
        outputs = torch.einsum("tgi,gni->gtn", grouped(x, GROUP), error)
        losses.append(outputs.square().sum(1).T)
    best = torch.stack(losses).amin(0)
    chosen = torch.stack(losses).gather(
        0, torch.tensor([[SHARES.index(round(float(s), 2)) for s in row] for row in shares[..., 0]])[None]
    )[0]
    assert torch.allclose(chosen, best, rtol=1e-3)
    assert float(shares.min()) < 1


def test_no_range_is_cut_to_hide_an_overflow(x: torch.Tensor) -> None:
    """A scale beyond half has to be seen where the weight is rounded; 0.6 of the range would fit."""
    weight = torch.randn(4, 64)
    weight[2, 40] = 1.5 * 65504 * 15
    inputs = _observed(x)
    assert inputs.gram is not None
    assert float(best_shares(weight, inputs.gram, GROUP)[2, 1]) == 1.0
