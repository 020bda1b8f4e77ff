"""A group of weights on the 16 levels that stand for them in 4 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.awq.rounding import LEVELS, Grid
from labkit.lab.drawing import USED, WARNING, document, line, words
from labkit.lab.picture import SvgPicture

WIDTH, HEIGHT, LEFT, TOP, FOOT = 640, 150, 16, 34, 70  # pixels; WIDTH and HEIGHT of the bars
DOT = 2  # pixels


def weight_grid(weights: Tensor, title: str = "", keep: float = 1.0) -> SvgPicture:
    """Draw one group: a dot for each weight, a line for each level, and over it how many weights are rounded to it.

    weights: [g]; keep: share of the range that the levels span. Raises ValueError for fewer than two weights.
    """
    if weights.ndim != 1 or len(weights) < 2:
        raise ValueError("a group is one row of at least two weights")
    group = weights.float().view(1, 1, -1)
    grid = Grid.of(group, keep)
    q = grid.nearest(group).flatten().long()
    levels = ((torch.arange(LEVELS + 1) - grid.zero.item()) * grid.scale.item()).tolist()
    counts = torch.bincount(q, minlength=LEVELS + 1).tolist()
    error = (grid.rounded(group) - group).flatten()
    head = f"{len(weights)} weights on 16 levels, {grid.scale.item():.4f} apart"
    worst = f"errors: {error.square().mean().sqrt():.4f} on average (root mean square), {error.abs().max():.4f} at most"
    head = f"{title}: {head}" if title else head
    rows = [f"q = {i:2}  {levels[i]:+.4f}  {count:3} {'#' * count}" for i, count in enumerate(counts)]
    svg = _svg(weights.tolist(), levels, counts, head, worst)
    used = sum(count > 0 for count in counts)
    return SvgPicture(
        svg, f"Weights on a grid. {head}; {used} levels are used. {worst}.", "\n".join([head, worst, *rows])
    )


def _svg(weights: list[float], levels: list[float], counts: list[int], head: str, worst: str) -> str:
    low, high = min([*weights, *levels]), max([*weights, *levels])

    def across(value: float) -> float:
        return LEFT + (value - low) / max(high - low, 1e-12) * WIDTH

    base, tallest = TOP + HEIGHT, max(counts)
    parts = [words(LEFT, 16, head, anchor="start", bold=True, size=11)]
    for level, count in zip(levels, counts, strict=True):
        top = base - count / tallest * (HEIGHT - 20)
        colour = WARNING if level == 0 else USED
        parts.append(line(across(level), base, across(level), top, stroke=colour, width=8))
        parts.append(words(across(level), top - 9, str(count), size=10))
    parts += [f'<circle cx="{across(w):.1f}" cy="{base + 12 + i % 4 * 5}" r="{DOT}"/>' for i, w in enumerate(weights)]
    parts.append(words(across(0), base + 42, "0", size=10))
    parts.append(words(LEFT, base + 58, worst, anchor="start"))
    return document(WIDTH + 2 * LEFT, base + FOOT, parts)
