"""Look over the engine's shoulder: what each of its steps computed, and how long the model took.

with watch(llm.engine) as steps:
    llm.generate("Once upon a time")
print(len(steps), "steps,", sum(step.rows for step in steps), "rows")
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.engine.batch import Batch, Chunk
from labkit.engine.core import Engine
from labkit.engine.request import Request
from labkit.engine.runner import Runner, StepLogits


@dataclass(frozen=True)
class StepRecord:
    """One step, as it was while the model ran.

    batch: what was scheduled; result: the logits that came out.
    page_tables, slots: of the batch's chunks, in their order; copied, because a sequence that ends gives them back.
    pages_used, slots_used: of the whole engine. seconds: the model's time, without scheduling and sampling.
    """

    batch: Batch
    result: StepLogits
    page_tables: tuple[tuple[int, ...], ...]
    slots: tuple[int | None, ...]
    pages_used: int
    slots_used: int
    seconds: float

    @property
    def rows(self) -> int:
        """Tokens that went through the model."""
        return self.batch.num_tokens

    def place(self, request: Request) -> int:
        """Index of the request's chunk in the batch. Raises ValueError if it had none."""
        for place, chunk in enumerate(self.batch.chunks):
            if chunk.seq is request.seq:
                return place
        raise ValueError(f"request {request.id} took no part in step {self.batch.step}")

    def chunk(self, request: Request) -> Chunk:
        """The request's tokens in this step. Raises ValueError if it had none."""
        return self.batch.chunks[self.place(request)]


@contextmanager
def watch(engine: Engine) -> Iterator[list[StepRecord]]:
    """Within the block, every step of the engine adds a record to the list; the engine computes what it always does."""
    steps: list[StepRecord] = []
    runner = engine.runner
    engine.runner = _WatchedRunner(engine, steps)
    try:
        yield steps
    finally:
        engine.runner = runner


class _WatchedRunner(Runner):
    """The engine's runner, taking notes."""

    def __init__(self, engine: Engine, steps: list[StepRecord]) -> None:
        vars(self).update(vars(engine.runner))
        self._scheduler, self._steps = engine.scheduler, steps

    def run(self, batch: Batch, every_row_of: Container[int] = ()) -> StepLogits:
        start = time.perf_counter()
        result = super().run(batch, every_row_of)
        self._steps.append(self._record(batch, result, time.perf_counter() - start))
        return result

    def _record(self, batch: Batch, result: StepLogits, seconds: float) -> StepRecord:
        limits, books = self._scheduler.config, self._scheduler
        return StepRecord(
            batch=batch,
            result=result,
            page_tables=tuple(tuple(chunk.seq.pages) for chunk in batch.chunks),
            slots=tuple(chunk.seq.slot for chunk in batch.chunks),
            pages_used=limits.num_pages - books.pages.num_free,
            slots_used=limits.max_running - books.slots.num_free,
            seconds=seconds,
        )
