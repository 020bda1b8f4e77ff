"""Checks of chapter 10: the step of an online softmax, and which pages a tile walks and masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.lab.exercises.running import staged
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE

NO_SCORE = -1e30  # before the first page: below every score, and finite
PAGE, DIM, STEPS = 8, 4, 6  # tokens of a page, elements of a value, and pages of the check
STEP_RULES = {
    "top": "The new top is the larger of the old one and scores.max().",
    "total": "total and sums were added up under the old top: multiply both by exp(old top - new top), then add.",
    "weights": "The weights of this page are exp(scores - new top).",
}
PAGE_RULES = {
    "walked": "The last row stands at position + rows - 1, in page (position + rows - 1) // 64: one page more.",
    "whole": "A page needs no mask if its last token, 64 p + 63, is not after the first row: (position + 1) // 64.",
}


def check_step(step: Callable[[float, float, Tensor, Tensor, Tensor], Any], seed: int | None = None) -> str:
    """Judge ``step(top, total, sums, scores, values) -> (top, total, sums)``: one row of queries meets one page.

    scores: [8], -inf for tokens in the future; values: [8, 4]. top: the largest score so far, -1e30 before the first
    page. total: the sum of exp(score - top) so far; sums [4]: of the same times the values. The check walks six pages:
    tops that grow, stay and are large, and a page that lies in the future. seed: of the drawn numbers. Raises
    AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    values = torch.randn(STEPS, PAGE, DIM, generator=draw)
    scores = torch.randn(STEPS, PAGE, generator=draw)
    scores += torch.tensor([-300.0, -298.0, -310.0, 200.0, 203.0, 0.0])[:, None]
    scores[4, PAGE // 2 :] = scores[5] = -torch.inf
    top, total, sums = NO_SCORE, 0.0, torch.zeros(DIM)
    for page in range(STEPS):
        given = step(top, total, sums.clone(), scores[page].clone(), values[page].clone())
        assert isinstance(given, tuple) and len(given) == 3, "Return three values: top, total, sums."
        wanted = _exact(scores[: page + 1], values[: page + 1])
        _check_state(page, given, wanted)
        top, total, sums = wanted
    return "Right: every page is seen once, and no score is kept."


def _exact(scores: Tensor, values: Tensor) -> tuple[float, float, Tensor]:
    """The state behind some pages, by the definition, in fp64."""
    flat = scores.double().flatten()
    weights = (flat - flat.max()).exp()
    return float(flat.max()), float(weights.sum()), (weights @ values.double().flatten(0, 1)).float()


def _check_state(page: int, given: tuple[Any, Any, Any], wanted: tuple[float, float, Tensor]) -> None:
    top, total = (float(value) for value in given[:2])
    sums, case = torch.as_tensor(given[2]).float(), f"page {page}"
    assert sums.shape == wanted[2].shape, f"{case}: sums has the shape {list(sums.shape)}, not [{DIM}]."
    assert abs(top - wanted[0]) < 1e-3, (
        f"{case}: top is {top:g}, not {wanted[0]:.4g}. {staged('What is the largest score so far?', STEP_RULES['top'])}"
    )
    numbers = torch.cat([torch.tensor([total]), sums])
    assert bool(numbers.isfinite().all()), (
        f"{case}: total or sums is not finite. {staged('How large can an exponent become?', STEP_RULES['weights'])}"
    )
    for name, found, exact in (("total", numbers[:1], torch.tensor([wanted[1]])), ("sums", sums, wanted[2])):
        off = float((found - exact).abs().max())
        assert off < 1e-3 * max(1.0, float(exact.abs().max())), (
            f"{case}: {name} is off by {off:.3g}. "
            f"{staged('Under which top was it added up so far, and under which now?', STEP_RULES['total'])}"
        )


def check_pages(pages: Callable[[int, int], Any], seed: int | None = None) -> str:
    """Judge ``pages(position, rows) -> (walked, whole)`` for a tile of queries.

    position: of its first row in the sequence; rows: 1 to 64. walked: the pages, from the first on, in which it sees
    anything; whole: those of them in which each row sees all 64 tokens. seed: of the drawn tiles. Raises AssertionError
    with a hint; returns a sentence of praise.
    """
    draw = random.Random(seed)
    drawn = [(draw.randrange(1000), draw.randint(1, QUERY_TILE)) for _ in range(20)]
    for position, rows in [(0, 64), (0, 1), (63, 1), (64, 64), (63, 64), (62, 2), (63, 2), *drawn]:
        given = pages(position, rows)
        assert isinstance(given, tuple) and len(given) == 2, "Return two whole numbers: walked, whole."
        walked, whole = _pages(position, rows)
        case = f"{rows} rows from position {position} on"
        assert given[0] == walked, (
            f"{case}: {walked} pages have something to see, you say {given[0]}. "
            f"{staged('Where does the last row stand?', PAGE_RULES['walked'])}"
        )
        assert given[1] == whole, (
            f"{case}: {whole} pages need no mask, you say {given[1]}. "
            f"{staged('Which row sees least, and which token of a page comes last?', PAGE_RULES['whole'])}"
        )
    return "Right: nothing in the future is read, and only the last pages are masked."


def _pages(position: int, rows: int) -> tuple[int, int]:
    """(walked, whole), row by row and token by token."""
    walked = whole = 0
    for page in range((position + rows) // PAGE_SIZE + 1):
        tokens = range(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
        seen = [token <= row for row in range(position, position + rows) for token in tokens]
        walked, whole = walked + any(seen), whole + all(seen)
    return walked, whole
