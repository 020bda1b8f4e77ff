"""A Gantt picture of the scheduler at work: one row per request, one column per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from labkit.engine.scheduler import Batch, Scheduler
from labkit.engine.sequence import Sequence
from labkit.lab.picture import SvgPicture


class Mark(StrEnum):
    """What a request did in a step; the letter stands in its cell, so that colour is not the only sign."""

    WAIT = "W"
    PREFILL = "P"
    DECODE = "D"
    PREEMPT = "X"


WORDS = {
    Mark.WAIT: "waits",
    Mark.PREFILL: "prefills (tokens)",
    Mark.DECODE: "decodes one token",
    Mark.PREEMPT: "is preempted",
}
# Light enough for black letters, and told apart by lightness where hues are not.
COLOURS = {Mark.WAIT: "#f2f2f2", Mark.PREFILL: "#56b4e9", Mark.DECODE: "#a6dcc8", Mark.PREEMPT: "#e8743b"}
ROW, FONT, MARGIN = 24, 12, 8  # pixels


@dataclass(frozen=True)
class Cell:
    """One request in one step."""

    mark: Mark
    tokens: int = 0

    @property
    def label(self) -> str:
        """``W``, ``D``, ``X``, or ``P`` with the number of prompt tokens."""
        return f"P{self.tokens or ''}" if self.mark is Mark.PREFILL else self.mark.value


class GanttRecorder:
    """Keeps what every request did in every step.

    names: what to call a request in the picture, by sequence id; the id itself where none is given.
    rows: sequence id -> step -> cell.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self.names = dict(names or {})
        self.rows: defaultdict[int, dict[int, Cell]] = defaultdict(dict)

    def record(self, batch: Batch, scheduler: Scheduler) -> None:
        """Note one step; call it right after ``schedule()``, while ``batch`` is in flight."""
        cells = {seq.seq_id: Cell(Mark.WAIT) for seq in (*scheduler.running, *scheduler.waiting)}
        cells |= {seq.seq_id: Cell(Mark.PREEMPT) for seq in batch.preempted}
        for i, chunk in enumerate(batch.chunks):
            mark = Mark.DECODE if i < batch.num_decodes else Mark.PREFILL
            cells[chunk.seq.seq_id] = Cell(mark, chunk.length)
        for seq_id, cell in cells.items():
            self.rows[seq_id][batch.step] = cell

    def name(self, seq_id: int) -> str:
        """The request's name in the picture."""
        return self.names.get(seq_id, str(seq_id))

    def steps(self) -> range:
        """All steps from the first to the last recorded one."""
        recorded = [step for row in self.rows.values() for step in row]
        return range(min(recorded), max(recorded) + 1) if recorded else range(0)

    def count(self, seq_id: int, mark: Mark) -> int:
        """Steps in which the request did this."""
        return sum(cell.mark is mark for cell in self.rows[seq_id].values())


def play(scheduler: Scheduler, arrivals: Iterable[tuple[int, Sequence]], max_steps: int = 1000) -> GanttRecorder:
    """Drive a scheduler without a model: every sampled token is 0, nothing but the schedule is of interest.

    arrivals: pairs of (step, sequence); a sequence is added before the step it comes in.
    Raises RuntimeError if work is left after ``max_steps``.
    """
    coming, recorder = sorted(arrivals, key=lambda pair: pair[0]), GanttRecorder()
    for step in range(max_steps):
        while coming and coming[0][0] <= step:
            scheduler.add(coming.pop(0)[1])
        batch = scheduler.schedule()
        recorder.record(batch, scheduler)
        scheduler.postprocess(batch, {chunk.seq.seq_id: 0 for chunk in batch.chunks if chunk.samples})
        if not coming and not scheduler.has_work:
            return recorder
    raise RuntimeError(f"{len(scheduler.running)} running and {len(scheduler.waiting)} waiting after {max_steps} steps")


def gantt_svg(recorder: GanttRecorder) -> SvgPicture:
    """Draw what was recorded. Rows stand in order of sequence id."""
    return SvgPicture(svg=_svg(recorder), alt=_alt(recorder), text=gantt_text(recorder))


def gantt_text(recorder: GanttRecorder) -> str:
    """The picture in characters; a dot where a request has not arrived yet or is done."""
    ids, steps = sorted(recorder.rows), recorder.steps()
    table = [["step", *map(str, steps)]]
    for seq_id in ids:
        row = recorder.rows[seq_id]
        table.append([recorder.name(seq_id), *(row[s].label if s in row else "." for s in steps)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [" ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([*lines, ", ".join(f"{mark.value} {words}" for mark, words in WORDS.items())])


def _alt(recorder: GanttRecorder) -> str:
    rows = "; ".join(_row_in_words(recorder, seq_id) for seq_id in sorted(recorder.rows))
    return f"Gantt chart of {len(recorder.rows)} requests over {len(recorder.steps())} steps. {rows}."


def _row_in_words(recorder: GanttRecorder, seq_id: int) -> str:
    counts = {mark: recorder.count(seq_id, mark) for mark in Mark}
    words = [f"{WORDS[mark].split()[0]} {n}" for mark, n in counts.items() if n and mark is not Mark.PREEMPT]
    if counts[Mark.PREEMPT]:
        words.append(f"is preempted {counts[Mark.PREEMPT]}")
    return f"{recorder.name(seq_id)} {', '.join(words)}"


def _svg(recorder: GanttRecorder) -> str:
    ids, steps = sorted(recorder.rows), recorder.steps()
    left = MARGIN + FONT * max([4, *(len(recorder.name(i)) for i in ids)])
    column = max([ROW, *(FONT * len(c.label) for row in recorder.rows.values() for c in row.values())])
    parts = [_text(left + (i + 0.5) * column, ROW / 2, str(step)) for i, step in enumerate(steps)]
    for y, seq_id in enumerate(ids, 1):
        parts.append(_text(left / 2, (y + 0.5) * ROW, recorder.name(seq_id), bold=True))
        for step, cell in recorder.rows[seq_id].items():
            parts.append(_cell(left + (step - steps.start) * column, y * ROW, column, cell))
    parts.append(_legend(left, (len(ids) + 1.5) * ROW))
    width, height = max(left + len(steps) * column, left + 660) + MARGIN, (len(ids) + 3) * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="{FONT}"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" dy="0.35em"{weight}>{escape(text)}</text>'


def _cell(x: float, y: float, width: float, cell: Cell) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW}" fill="{COLOURS[cell.mark]}" stroke="white"/>'
    return box + _text(x + width / 2, y + ROW / 2, cell.label)


def _legend(left: float, y: float) -> str:
    parts = []
    for i, (mark, words) in enumerate(WORDS.items()):
        x = left + 165 * i
        parts.append(_cell(x, y, ROW, Cell(mark)))
        parts.append(f'<text x="{x + ROW + 6:g}" y="{y + ROW / 2:g}" dy="0.35em">{words}</text>')
    return "".join(parts)
