"""One token's way through the engine, drawn with the figures of a real step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from labkit.engine.core import Engine
from labkit.engine.request import Request
from labkit.engine.sampler import log_softmax
from labkit.engine.tokenizer import Tokenizer
from labkit.lab.drawing import counted
from labkit.lab.picture import SvgPicture
from labkit.lab.step_watch import StepRecord
from labkit.lab.top_tokens import token_text, visible

BOX, GAP, FONT, MARGIN = 42, 26, 13, 10  # pixels: height of a box, space between two, letters, edge
WIDTH, LOOP, TITLE = 640, 64, 130  # pixels: of a box, of the way back beside it, of a box's title
COLOUR = "#e8f1f8"
MAX_LETTERS = 58  # that a box has room for


@dataclass(frozen=True)
class Stage:
    """A box: what it is, and what stands in it. work: the function that made it, "" for what was there before."""

    title: str
    figures: str
    work: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.figures}"


def token_flow(engine: Engine, request: Request, step: StepRecord) -> SvgPicture:
    """Draw how the step turned tokens of the request into its next one.

    Raises ValueError if the request had no part in the step, or got no token from it (a prefill that goes on).
    """
    stages = flow_stages(engine, request, step)
    text = "\n  |\n".join(f"{stage}{f'   ({stage.work})' if stage.work else ''}" for stage in stages)
    alt = f"One token's way through the engine, from top to bottom. {'; '.join(map(str, stages))}. "
    alt += "From the new token an arrow leads back to the sequence: the next step computes it."
    return SvgPicture(svg=_svg(stages), alt=alt, text=text)


def flow_stages(engine: Engine, request: Request, step: StepRecord) -> list[Stage]:
    """The boxes of the picture, in order."""
    tokenizer, chunk, place = _tokenizer(engine), step.chunk(request), step.place(request)
    if not chunk.samples:
        raise ValueError(f"request {request.id} got no token in step {step.batch.step}: its prefill went on")
    end = chunk.start + chunk.length
    ids = chunk.seq.token_ids(chunk.start, end)
    known = min(end, len(chunk.seq.prompt_ids))
    new = chunk.seq.output_ids[end - len(chunk.seq.prompt_ids)]
    encode, submit = ("", "") if chunk.start else ("Tokenizer.encode", "Engine.submit")  # both happen once
    rows, width = step.result.logits.shape
    return [
        Stage("text", _short(visible(tokenizer.decode(ids, skip_special=False)))),
        Stage("token ids", _short(f"{counted(len(ids), 'id')}: {', '.join(map(str, ids))}"), encode),
        Stage("sequence", f"{known} prompt + {end - known} new tokens, {chunk.start} of them computed", submit),
        Stage("batch", _batch(engine, step, chunk.start, end), "Scheduler.schedule"),
        Stage("model", _model(engine, step, place), "Runner.run"),
        Stage("logits", f"{rows} × {width}: a row for each sequence that gets a token", "the head, on last rows only"),
        Stage("new token", f"id {new}, probability {_probability(step, request, new):.0%}", "sample"),
        Stage("text", _released(engine, tokenizer, new), "TextStream.push"),
    ]


def _tokenizer(engine: Engine) -> Tokenizer:
    if engine.tokenizer is None:
        raise ValueError("the picture shows text, and this checkpoint has no tokenizer")
    return engine.tokenizer


def _released(engine: Engine, tokenizer: Tokenizer, token: int) -> str:
    return "none: this token ends the answer" if token in engine.eos_ids else token_text(tokenizer, token)


def _short(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"


def _batch(engine: Engine, step: StepRecord, start: int, end: int) -> str:
    total = f"{counted(len(step.batch.chunks), 'chunk')}, {counted(step.rows, 'row')}"
    return f"{total}; ours [{start}:{end}]; {step.pages_used} of {engine.num_pages} pages taken"


def _model(engine: Engine, step: StepRecord, place: int) -> str:
    layers, pages = engine.model_config.num_hidden_layers, list(step.page_tables[place])
    return f"{counted(step.rows, 'row')} through {layers} layers; KV pages {pages}, slot {step.slots[place]}"


def _probability(step: StepRecord, request: Request, token: int) -> float:
    """Softmax of the request's row, at temperature 1."""
    row = next(i for i, chunk in enumerate(step.result.sampled) if chunk.seq is request.seq)
    scores = log_softmax(np.asarray(step.result.logits[row].tolist(), dtype=np.float64))
    return float(np.exp(scores[token]))


def _svg(stages: Sequence[Stage]) -> str:
    width, height = WIDTH + LOOP + 2 * MARGIN, len(stages) * (BOX + GAP) - GAP + 2 * MARGIN
    tops = [MARGIN + i * (BOX + GAP) for i in range(len(stages))]
    parts = [_box(top, stage) for top, stage in zip(tops, stages, strict=True)]
    parts += [_arrow(top, stage) for top, stage in zip(tops[1:], stages[1:], strict=True)]
    sequence = next(i for i, stage in enumerate(stages) if stage.title == "sequence")
    parts.append(_way_back(tops[-2] + BOX / 2, tops[sequence] + BOX / 2))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="{FONT}"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>"
    )


def _box(y: float, stage: Stage) -> str:
    place = f'x="{MARGIN}" y="{y}" width="{WIDTH}" height="{BOX}"'
    box = f'<rect {place} rx="8" fill="{COLOUR}" stroke="#444"/>'
    title = _text(MARGIN + 14, y + BOX / 2, stage.title, 'font-weight="bold"')
    return box + title + _text(MARGIN + TITLE, y + BOX / 2, stage.figures, 'font-family="monospace"')


def _arrow(y: float, stage: Stage) -> str:
    """From the box above down to the one at ``y``, with the name of the function on it."""
    x = MARGIN + TITLE + 40
    return f"{_line(f'M{x} {y - GAP}V{y - 7}')}{_head(x, y, 0, -1)}{_text(x + 12, y - GAP / 2, stage.work)}"


def _way_back(start: float, end: float) -> str:
    """From the new token up to the sequence, beside the boxes."""
    edge, out = MARGIN + WIDTH, MARGIN + WIDTH + 24
    words = f'<text transform="translate({out + 16} {(start + end) / 2:g}) rotate(-90)" text-anchor="middle"'
    return (
        f"{_line(f'M{edge} {start:g}H{out}V{end:g}H{edge + 7}')}{_head(edge, end, 1, 0)}"
        f"{words}>appended: once more</text>"
    )


def _head(x: float, y: float, dx: int, dy: int) -> str:
    """An arrow's point at (x, y), coming from the direction (dx, dy)."""
    base, across = (x + 8 * dx, y + 8 * dy), (4 * dy, 4 * dx)
    corners = [(x, y), (base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1])]
    return f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in corners)}" fill="#444"/>'


def _line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#444"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" dy="0.35em" {style}>{escape(text)}</text>'
