"""``labkit bench run``: how fast a loaded model reads prompts and generates, over context lengths and batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from labkit.bench.ceiling import Ceiling, read_bandwidth
from labkit.bench.results import BenchRow, measured_here
from labkit.bench.subject import LabkitSubject, Subject
from labkit.bench.timing import BenchStopped, ShouldStop, Timing, spreads
from labkit.bench.workload import Workload, random_prompts
from labkit.engine.llm import LLM
from labkit.engine.placement import CPU
from labkit.errors import LabkitError

Progress = Callable[[int, int, str], None]  # runs done, runs in all, what comes next


def run_bench(
    llm: LLM,
    context_lengths: Sequence[int] = (128, 1024),
    batch_sizes: Sequence[int] = (1, 8),
    decode_tokens: int = 32,
    repeats: int = 3,
    progress: Progress | None = None,
    should_stop: ShouldStop | None = None,
) -> list[BenchRow]:
    """Measure every (context, batch) cell: a warm-up, then ``repeats`` runs, each on fresh random prompts.

    progress is called before every run; its text names the cell and, before the warm-up of a cell, the ceiling that
    the memory bandwidth sets. should_stop is asked before every step of the engine; the rows of finished cells are
    returned. A cell that does not fit is a row with ``error``. Raises ConfigError for an impossible workload.
    """
    workload = Workload(context_lengths, batch_sizes, decode_tokens, repeats)
    return list(iter_bench(llm, workload, progress, should_stop))


def iter_bench(
    llm: LLM, workload: Workload, progress: Progress | None = None, should_stop: ShouldStop | None = None
) -> Iterator[BenchRow]:
    """Like ``run_bench``, but yields each row as soon as its cell is measured."""
    for rows in SideBySide([LabkitSubject(llm)], workload, progress, should_stop):
        yield from rows


class SideBySide:
    """Measures every cell for several subjects whose runs alternate (A B A B), so that drift hits all of them alike.

    Iterating yields, for each cell, one row per subject, in their order.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        workload: Workload,
        progress: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> None:
        self.subjects, self.workload = subjects, workload
        self.progress, self.should_stop = progress, should_stop
        devices = {_device(subject) for subject in subjects}
        self.origins = {device: measured_here(device) for device in devices}
        self.bandwidths = {device: read_bandwidth(device=device) for device in devices}

    def __iter__(self) -> Iterator[list[BenchRow]]:
        runs = self.workload.repeats + 1
        total = runs * len(self.workload.cells)
        for number, cell in enumerate(self.workload.cells):
            try:
                rows = self._measure(cell, runs * number, total)
            except BenchStopped:
                return
            self._tell(runs * (number + 1), total, _cell_name(*cell) + " measured")
            yield rows

    def _measure(self, cell: tuple[int, int], done: int, total: int) -> list[BenchRow]:
        timings: list[list[Timing]] = [[] for _ in self.subjects]
        errors = [subject.problem(*cell, self.workload.decode_tokens) for subject in self.subjects]
        for run in range(self.workload.repeats + 1):
            if all(errors):
                break
            self._tell(done + run, total, self._next_run(cell, run))
            for i, subject in enumerate(self.subjects):
                if errors[i] is not None:
                    continue
                try:
                    timings[i].append(self._time(subject, cell, warm_up=run == 0))
                except LabkitError as error:
                    errors[i] = str(error)
        return [self._row(*parts, cell) for parts in zip(self.subjects, timings, errors, strict=True)]

    def _time(self, subject: Subject, cell: tuple[int, int], warm_up: bool) -> Timing:
        prompts = random_prompts(subject.vocabulary, *cell)
        return subject.time(prompts, 1 if warm_up else self.workload.decode_tokens, self.should_stop)

    def _row(self, subject: Subject, timings: list[Timing], error: str | None, cell: tuple[int, int]) -> BenchRow:
        context, batch = cell
        decode_tokens, ceiling = self.workload.decode_tokens, self._ceiling(subject, cell)
        figures: dict[str, Any] = {"error": error}
        if error is None:
            figures = {**spreads(timings[1:], context, batch, decode_tokens)}
            figures["ceiling_tokens_per_s"] = ceiling.tokens_per_s if ceiling else None
        return BenchRow(
            **subject.about,
            context=context,
            batch=batch,
            decode_tokens=decode_tokens,
            repeats=self.workload.repeats,
            origin=self.origins[_device(subject)],
            **figures,
        )

    def _ceiling(self, subject: Subject, cell: tuple[int, int]) -> Ceiling | None:
        return subject.ceiling(*cell, self.bandwidths[_device(subject)])

    def _next_run(self, cell: tuple[int, int], run: int) -> str:
        if run:
            return f"{_cell_name(*cell)}, run {run} of {self.workload.repeats}"
        return f"{_cell_name(*cell)}, warm-up; ceiling: {self._ceiling(self.subjects[0], cell)}"

    def _tell(self, done: int, total: int, text: str) -> None:
        if self.progress:
            self.progress(done, total, text)


def _device(subject: Subject) -> torch.device:
    """Where it computes: peers do on the CPU."""
    return subject.device if isinstance(subject, LabkitSubject) else CPU


def _cell_name(context: int, batch: int) -> str:
    return f"context {context}, batch {batch}"
