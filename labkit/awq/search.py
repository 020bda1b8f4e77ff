"""AWQ's two searches (Lin et al. 2023, arXiv:2306.00978): a scale for each input, then a range for each group.

Scale. An input of large magnitude multiplies the rounding errors of its weights. Weights times s_j > 1 and the input
divided by s_j give the same product, but the rounding errors count 1 / s_j, at the price of coarser steps where the
scaled weights widen their group. Candidates, with a_j the mean of |x_j|, and w_j the mean over the outputs of |W_ij|
relative to the largest weight of its group:

    s = a^alpha             alpha = 0, 1/20, ..., 19/20 (alpha = 0 is round to nearest)
    s = a^alpha / w^(1 - alpha)

The one with the smallest loss wins: the squared error of the outputs, || x W'^T - x W^T ||^2, relative to
|| x W^T ||^2, summed over the projections that read the input.

Range. Cutting a group's range to a share of itself makes the steps finer and the outliers wrong. The loss of a group is
the error that it adds to its output, d^T (x^T x) d with d = w' - w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.awq.observe import Inputs
from labkit.awq.rounding import Grid, grouped, rounded

STEPS = 20  # of alpha
SHARES = tuple(1 - step / 20 for step in range(11))  # of a group's range: 1 to 0.5
SMALLEST = 1e-4  # of a scale and of a magnitude: an input that is always 0 needs none
ROWS = 512  # outputs whose ranges are searched at a time


@dataclass(frozen=True)
class Candidate:
    """A scale that was tried. loss: see the module's docstring; with_weights: of the second kind."""

    alpha: float
    with_weights: bool
    loss: float
    scale: Tensor


@dataclass(frozen=True)
class Readers:
    """The projections of a scope. weights: fp32 [N, K] by name; tie: int64 [K], equal numbers share a scale."""

    weights: Mapping[str, Tensor]
    tie: Tensor
    group_size: int

    def tied_mean(self, values: Tensor) -> Tensor:
        """The mean of fp32 [K] over the inputs that share a scale: [B]."""
        entries = int(self.tie.max()) + 1
        total = torch.zeros(entries).index_add_(0, self.tie, values)
        return total / torch.bincount(self.tie, minlength=entries)


def scale_candidates(readers: Readers, inputs: Inputs) -> list[Candidate]:
    """Every scale [B] of the grid, with its loss."""
    activation, magnitude = readers.tied_mean(inputs.mean), readers.tied_mean(_magnitudes(readers))
    rows = inputs.rows
    exact = {name: rows @ weight.T for name, weight in readers.weights.items()}
    candidates = []
    for with_weights in (False, True):
        for step in range(STEPS):
            alpha = step / STEPS
            scale = _normalised(activation, alpha, magnitude if with_weights else None)
            candidates.append(Candidate(alpha, with_weights, _loss(readers, rows, exact, scale), scale))
    return candidates


def best_scale(readers: Readers, inputs: Inputs) -> Candidate:
    """The candidate with the smallest loss."""
    return min(scale_candidates(readers, inputs), key=lambda candidate: candidate.loss)


def _magnitudes(readers: Readers) -> Tensor:
    """fp32 [K]: the mean over all outputs of |w|, relative to the largest of its group."""
    joined = torch.cat([grouped(weight, readers.group_size) for weight in readers.weights.values()]).abs()
    return (joined / joined.amax(-1, keepdim=True).clamp(min=1e-12)).mean(0).flatten()


def _normalised(activation: Tensor, alpha: float, magnitude: Tensor | None) -> Tensor:
    """A scale of the grid, its smallest and largest entries equally far from 1."""
    scale = activation.clamp(min=SMALLEST) ** alpha
    if magnitude is not None:
        scale = scale / magnitude.clamp(min=SMALLEST) ** (1 - alpha)
    scale = scale.clamp(min=SMALLEST)
    return scale / (scale.max() * scale.min()).sqrt()


def _loss(readers: Readers, rows: Tensor, exact: Mapping[str, Tensor], scale: Tensor) -> float:
    spread, total = scale[readers.tie], 0.0
    scaled_rows = rows / spread
    for name, weight in readers.weights.items():
        got = scaled_rows @ rounded(weight * spread, readers.group_size).T
        total += float((got - exact[name]).square().sum() / exact[name].square().sum().clamp(min=1e-30))
    return total


def best_shares(weight: Tensor, gram: Tensor, group_size: int) -> Tensor:
    """The share of its range that each group keeps: fp32 [N, K / g, 1].

    weight: fp32 [N, K]; gram: fp32 [K / g, g, g], x^T x of the inputs that this weight multiplies.
    """
    return torch.cat([_shares(grouped(part, group_size), gram) for part in weight.split(ROWS)])


def _shares(groups: Tensor, gram: Tensor) -> Tensor:
    best = torch.ones(*groups.shape[:2], 1)
    smallest = _range_loss(groups, gram, SHARES[0])  # NaN if no half holds the scale: a cut would only hide that
    for share in SHARES[1:]:
        loss = _range_loss(groups, gram, share)
        better = loss < smallest
        best[better] = share
        smallest = torch.where(better, loss, smallest)
    return best


def _range_loss(groups: Tensor, gram: Tensor, share: float) -> Tensor:
    """d^T (x^T x) d of each group: fp32 [N, K / g, 1]."""
    error = (Grid.of(groups, share).rounded(groups) - groups).transpose(0, 1)  # [K / g, N, g]
    return ((error @ gram) * error).sum(-1, keepdim=True).transpose(0, 1)
