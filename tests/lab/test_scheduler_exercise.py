"""The check of chapter 15 accepts what is right and gives the matching hint for what is not."""

from __future__ import annotations

import pytest

from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.engine.sequence import Sequence
from labkit.lab.exercises.scheduler import check_shortest_first, longest_wait, mean_wait
from labkit.lab.gantt import play


class ShortestFirst(Scheduler):
    def pick_next(self) -> Sequence:
        return min(self.waiting, key=len)


class Longest(Scheduler):
    def pick_next(self) -> Sequence:
        return max(self.waiting, key=len)


class LatestOfTheShortest(Scheduler):
    def pick_next(self) -> Sequence:
        return min(reversed(self.waiting), key=len)


class TakesItOut(Scheduler):
    def pick_next(self) -> Sequence:
        seq = min(self.waiting, key=len)
        self.waiting.remove(seq)
        return seq


class CutsAnswersShort(ShortestFirst):
    def _append(self, seq: Sequence, token: int) -> None:
        super()._append(seq, token)
        if len(seq.output_ids) == 3:
            self.abort(seq.seq_id)


@pytest.mark.parametrize("seed", range(5))
def test_the_solution_passes(seed: int) -> None:
    assert check_shortest_first(ShortestFirst, seed).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (Scheduler, r"Compare len\(seq\)"),
        (Longest, r"Compare len\(seq\)"),
        (LatestOfTheShortest, "came first"),
        (TakesItOut, "leave it there"),
        (CutsAnswersShort, "did not get all"),
    ],
)
def test_wrong_policies_get_a_hint(wrong: type[Scheduler], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_shortest_first(wrong)


def test_shortest_first_shortens_the_mean_wait_and_lengthens_the_longest() -> None:
    config = SchedulerConfig(num_pages=100, max_running=1, max_seq_len=100)
    arrivals = [(0, 2), (1, 60), *[(step, 3) for step in range(2, 12)]]

    def waits(make: type[Scheduler]) -> tuple[float, int]:
        recorder = play(make(config), [(step, Sequence(i, [0] * n, n)) for i, (step, n) in enumerate(arrivals)])
        return mean_wait(recorder), longest_wait(recorder)

    (fifo_mean, _), (shortest_mean, shortest_longest) = waits(Scheduler), waits(ShortestFirst)
    assert shortest_mean < fifo_mean / 2
    assert shortest_longest == 31  # the long request stands behind all ten short ones of three steps each
