"""The loss of AWQ's scales against alpha: too little scaling leaves the error, too much makes the steps coarse."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.awq.search import Candidate
from labkit.lab.drawing import USED, WARNING, document, line, words
from labkit.lab.picture import SvgPicture

WIDTH, HEIGHT, LEFT, TOP, FOOT = 560, 220, 64, 34, 60  # pixels; WIDTH and HEIGHT of the plot
KINDS = {False: ("s = a^alpha", USED), True: ("s = a^alpha / w^(1 - alpha)", WARNING)}


def loss_curve(candidates: Sequence[Candidate], title: str = "") -> SvgPicture:
    """Draw the losses of ``scale_candidates``. Raises ValueError if there is none."""
    if not candidates:
        raise ValueError("there is no candidate to draw")
    best, plain = min(candidates, key=lambda c: c.loss), candidates[0].loss
    head = f"best at alpha = {best.alpha:.2f} of {KINDS[best.with_weights][0]}: loss {best.loss / plain:.2f} times that"
    head = f"{head} of round to nearest"
    head = f"{title}: {head}" if title else head
    return SvgPicture(
        _svg(candidates, best, head), f"Loss against alpha. {head}.", "\n".join([head, *_rows(candidates)])
    )


def _rows(candidates: Sequence[Candidate]) -> list[str]:
    found = {(c.alpha, c.with_weights): c.loss for c in candidates}
    rows = ["alpha  " + "  ".join(f"{name:>28}" for name, _ in KINDS.values())]
    for alpha in sorted({c.alpha for c in candidates}):
        losses = (found.get((alpha, kind)) for kind in KINDS)
        rows.append(f"{alpha:5.2f}  " + "  ".join(f"{'-' if loss is None else f'{loss:.5f}':>28}" for loss in losses))
    return rows


def _svg(candidates: Sequence[Candidate], best: Candidate, head: str) -> str:
    # A curve that shoots up would flatten the others: what lies above twice round to nearest leaves the plot.
    top, base = 2 * candidates[0].loss, TOP + HEIGHT

    def at(c: Candidate) -> tuple[float, float]:
        return LEFT + c.alpha * WIDTH, base - c.loss / top * HEIGHT

    parts = [words(LEFT, 16, head, anchor="start", bold=True, size=11)]
    for row, (kind, (name, colour)) in enumerate(KINDS.items()):
        points = [at(c) for c in candidates if c.with_weights == kind and c.loss <= top]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(words(LEFT + 8 + row * 150, base + 40, name, anchor="start"))
        parts.append(line(LEFT - 12 + row * 150, base + 40, LEFT + 4 + row * 150, base + 40, stroke=colour, width=4))
    x, y = at(best)
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="black" stroke-width="2"/>')
    parts += [line(LEFT, base, LEFT + WIDTH, base), line(LEFT, base, LEFT, TOP)]
    parts += [words(LEFT + a * WIDTH, base + 16, f"{a:g}", size=10) for a in (0, 0.25, 0.5, 0.75, 1)]
    parts += [words(LEFT - 6, base - p * HEIGHT, f"{p * top:.3g}", anchor="end", size=10) for p in (0, 0.5, 1)]
    return document(LEFT + WIDTH + 24, base + FOOT, parts)
