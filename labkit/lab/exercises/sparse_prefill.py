"""Checks of chapter 11: pooled scores, scores of sampled rows, and a choice of pages up to a mass."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.lab.exercises.running import staged
from labkit.ops.layout import PAGE_SIZE, QUERY_TILE

DIM, PAGES = 16, 12
POOLED_RULES = {
    "pooled": "One mean row, q.mean(0), times the mean key of each page, keys.mean(1), over the square root of D.",
}
SAMPLED_RULES = {
    "rows": "Only q[rows] are asked: scores are q[rows] k / sqrt(D), for every key of every page.",
    "shares": "A softmax runs over all keys of all pages together; a page's share is the sum over its 64 keys.",
    "most": "A page's score is the largest share that any sampled row pays to it: amax over the rows.",
}
CHOICE_RULES = {
    "always": "range(sink) and range(P - recent, P) are kept whatever their scores are.",
    "order": "Of the other pages take the one with the highest score first.",
    "given": "What sink and recent pages hold counts: begin with the sum of their scores.",
    "stop": "Add a page while what is kept holds less than mass * scores.sum(), and not one more.",
}


def check_pooled(pooled: Callable[[Tensor, Tensor], Any], seed: int | None = None) -> str:
    """Judge ``pooled(q, keys) -> scores [P]``: the mean row against the mean key of each page, over sqrt(D).

    q: [64, D]; keys: [P, 64, D]. seed: of the drawn numbers. Raises AssertionError with a hint; returns praise.
    """
    q, keys = _drawn(seed)
    given = _scores(pooled(q.clone(), keys.clone()))
    wanted = keys.mean(1) @ q.mean(0) / DIM**0.5
    off = (given - wanted).abs()
    page = int(off.argmax())
    assert float(off[page]) < 1e-4, (
        f"page {page}: {float(given[page]):.4f}, not {float(wanted[page]):.4f}. "
        f"{staged('Which two vectors are multiplied for a page?', POOLED_RULES['pooled'])}"
    )
    return "Right: one product for 64 rows and 64 keys."


def check_sampled(sampled: Callable[[Tensor, Tensor, Tensor], Any], seed: int | None = None) -> str:
    """Judge ``sampled(q, keys, rows) -> scores [P]``: the largest share that any of some rows pays to each page.

    q: [64, D]; keys: [P, 64, D]; rows: int64 [8], the rows of q that are asked. Each row's shares of all pages sum to
    1. seed: of the drawn numbers. Raises AssertionError with a hint; returns praise.
    """
    q, keys = _drawn(seed)
    rows = torch.randperm(QUERY_TILE, generator=torch.Generator().manual_seed(int(1e4 * float(q[0, 0].abs()))))[:8]
    given = _scores(sampled(q.clone(), keys.clone(), rows.clone()))
    shares = _shares(q[rows], keys)
    for name, other, question in (
        ("rows", _shares(q, keys).amax(0), "Which rows are asked?"),
        ("most", shares.mean(0), "What does an average over rows make of what one row wants?"),
        ("most", shares.sum(0), "What does a sum over rows make of what one row wants?"),
    ):
        same = torch.allclose(given, other, atol=1e-5)
        assert not same, f"Nearly. {staged(question, SAMPLED_RULES[name])}"
    off = (given - shares.amax(0)).abs()
    page = int(off.argmax())
    assert float(off[page]) < 1e-5, (
        f"page {page}: {float(given[page]):.4f}, not {float(shares[:, page].max()):.4f}. "
        f"{staged('Over which keys does a softmax run, and which of them are the page?', SAMPLED_RULES['shares'])}"
    )
    return "Right: what any of the sampled rows wants is seen."


def check_choice(choice: Callable[[Tensor, int, int, float], Any], seed: int | None = None) -> str:
    """Judge ``choice(scores, sink, recent, mass) -> pages``, which pages are kept, in ascending order.

    scores: fp32 [P], above 0, of the pages before a tile. Kept are the first ``sink`` and the last ``recent`` pages,
    and then those with the highest scores until all kept ones hold ``mass`` of the sum. seed: of the drawn scores.
    Raises AssertionError with a hint; returns praise.
    """
    draw = random.Random(seed)
    for sink, recent, mass in ((0, 0, 0.5), (1, 4, 0.801), (1, 4, 0.951), (2, 2, 1.0), (5, 5, 0.1), (1, 0, 0.301)):
        scores = draw.sample(range(1, 400), 30)
        given = choice(torch.tensor(scores, dtype=torch.float32) / 512, sink, recent, mass)
        _check_choice(given, scores, sink, recent, mass)
    return "Right: sink, recent and anchors, and not a page more than the mass takes."


def _check_choice(given: Any, scores: Sequence[int], sink: int, recent: int, mass: float) -> None:
    case = f"{len(scores)} pages, sink {sink}, recent {recent}, mass {mass:g}"
    try:
        pages = [int(page) for page in given]
    except (TypeError, ValueError):
        raise AssertionError("Return the numbers of the kept pages, as a list.") from None
    inside = all(0 <= page < len(scores) for page in pages)
    assert inside and pages == sorted(set(pages)), f"{case}: list pages in ascending order, each once, not {pages}."
    always = [*range(sink), *range(len(scores) - recent, len(scores))]
    missing = [page for page in always if page not in pages]
    assert not missing, (
        f"{case}: page {missing[0] if missing else ''} is missing. "
        f"{staged('Which pages are kept without a look at scores?', CHOICE_RULES['always'])}"
    )
    wanted = _choice(scores, sink, recent, mass)
    held = sum(scores[page] for page in pages) / sum(scores)
    assert held >= mass - 1e-9 or pages == wanted, (
        f"{case}: your {len(pages)} pages hold {held:.1%}. {staged('When is it enough?', CHOICE_RULES['stop'])}"
    )
    assert len(pages) <= len(wanted) or _takes_the_best(pages, scores, always) is False, (
        f"{case}: {len(wanted)} pages are enough, you keep {len(pages)}. "
        f"{staged('What do the sink and recent pages hold already?', CHOICE_RULES['given'])}"
    )
    assert pages == wanted, (
        f"{case}: these are not the pages with the highest scores. "
        f"{staged('Which page is taken next?', CHOICE_RULES['order'])}"
    )


def _choice(scores: Sequence[int], sink: int, recent: int, mass: float) -> list[int]:
    """The definition, in whole numbers but for the mass."""
    kept = {*range(sink), *range(len(scores) - recent, len(scores))}
    held = sum(scores[page] for page in kept)
    for page in sorted(set(range(len(scores))) - kept, key=lambda page: -scores[page]):
        if held >= mass * sum(scores):
            break
        kept.add(page)
        held += scores[page]
    return sorted(kept)


def _takes_the_best(pages: Sequence[int], scores: Sequence[int], always: Sequence[int]) -> bool:
    """Whether no page that was left out has a higher score than an anchor."""
    anchors = [scores[page] for page in pages if page not in always]
    others = [score for page, score in enumerate(scores) if page not in pages]
    return not anchors or not others or min(anchors) > max(others)


def _drawn(seed: int | None) -> tuple[Tensor, Tensor]:
    """Queries and keys with means of their own, so that no mean is next to 0."""
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    q = 2 * torch.randn(QUERY_TILE, DIM, generator=draw) + torch.randn(DIM, generator=draw)
    keys = torch.randn(PAGES, PAGE_SIZE, DIM, generator=draw) + torch.randn(PAGES, 1, DIM, generator=draw)
    return q, keys


def _shares(q: Tensor, keys: Tensor) -> Tensor:
    """[rows, P]."""
    logits = q @ keys.flatten(0, 1).T / DIM**0.5
    return logits.softmax(-1).unflatten(-1, (-1, PAGE_SIZE)).sum(-1)


def _scores(given: Any) -> Tensor:
    assert isinstance(given, Tensor), "Return a tensor with a score for each page."
    assert given.shape == (PAGES,), f"Return a score for each of {PAGES} pages, not the shape {list(given.shape)}."
    assert bool(given.isfinite().all()), "A score is not finite."
    return given.float()
