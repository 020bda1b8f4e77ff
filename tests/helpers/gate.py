"""Stops an engine inside its steps, so that a test decides what happens between them."""

from __future__ import annotations

import queue
import threading
from typing import Any

from labkit.engine.core import Engine


class Gate:
    """Every step waits inside ``runner.run``, between scheduling and its results, until the test lets it pass."""

    def __init__(self, engine: Engine) -> None:
        self._run = engine.runner.run
        self._permits = threading.Semaphore(0)
        self._batches: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        engine.runner.run = self._gated  # type: ignore[method-assign]

    def next_batch(self) -> list[int]:
        """The sequence ids of the step that has just begun and now waits."""
        return self._batches.get(timeout=20)

    def let_pass(self, steps: int = 1) -> None:
        """Let so many steps go on."""
        self._permits.release(steps)

    def _gated(self, batch: Any, *rest: Any) -> Any:
        self._batches.put([chunk.seq.seq_id for chunk in batch.chunks])
        assert self._permits.acquire(timeout=20), "the test never let this step pass"
        return self._run(batch, *rest)
