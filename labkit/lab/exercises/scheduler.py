"""Checks of chapter 15: an admission policy that lets the shortest request go first."""

from __future__ import annotations

import random
from collections.abc import Callable

from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.engine.sequence import Sequence
from labkit.lab.gantt import GanttRecorder, Mark, play

SchedulerFactory = Callable[[SchedulerConfig], Scheduler]


def mean_wait(recorder: GanttRecorder) -> float:
    """Steps that a request waited, on average over the requests."""
    return sum(recorder.count(seq_id, Mark.WAIT) for seq_id in recorder.rows) / len(recorder.rows)


def longest_wait(recorder: GanttRecorder) -> int:
    """Steps that the unluckiest request waited."""
    return max(recorder.count(seq_id, Mark.WAIT) for seq_id in recorder.rows)


def check_shortest_first(make: SchedulerFactory, seed: int | None = None) -> str:
    """Judge a scheduler whose ``pick_next`` should return the waiting sequence with the fewest tokens to compute.

    make: the class, called with a SchedulerConfig. The check draws fresh queues; ``seed`` repeats one of its runs.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for size in (1, 2, 5, 17, 40):
        _check_choice(make, [rng.randint(1, 60) for _ in range(size)])
    _check_choice(make, [9, 4, 7, 4])
    _check_everybody_finishes(make, rng)
    return "Right: the shortest goes first, ties go to the oldest, and everybody finishes."


def _check_choice(make: SchedulerFactory, lengths: list[int]) -> None:
    scheduler = make(SchedulerConfig(num_pages=100, max_running=1, max_seq_len=100))
    for seq in _requests(lengths):
        scheduler.add(seq)
    picked = scheduler.pick_next()
    assert any(picked is seq for seq in scheduler.waiting), (
        "pick_next must return one of self.waiting and leave it there: the scheduler takes it out itself."
    )
    shortest = min(lengths)
    assert len(picked) == shortest, (
        f"Waiting have {lengths} tokens, you picked one with {len(picked)}. Compare len(seq), not seq.arrival."
    )
    assert picked.seq_id == lengths.index(shortest), (
        f"Waiting have {lengths} tokens: of those with {shortest}, the one that came first should go first."
    )


def _check_everybody_finishes(make: SchedulerFactory, rng: random.Random) -> None:
    requests = _requests([rng.randint(1, 60) for _ in range(30)])
    scheduler = make(SchedulerConfig(num_pages=18, max_running=3, max_seq_len=100, page_size=8, prefill_tokens=32))
    play(scheduler, [(rng.randint(0, 20), seq) for seq in requests])
    scheduler.check_invariants()
    unfinished = [seq.seq_id for seq in requests if len(seq.output_ids) != seq.max_tokens]
    assert not unfinished, f"Requests {unfinished} did not get all their tokens. Change pick_next only."


def _requests(lengths: list[int]) -> list[Sequence]:
    return [Sequence(i, [0] * length, max_tokens=8) for i, length in enumerate(lengths)]
