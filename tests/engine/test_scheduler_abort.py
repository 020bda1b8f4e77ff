"""An abort reaches the scheduler in every state of a request, and a second one does nothing.

The fault behind it: a client goes away, its request keeps its slot and pages and decodes to the end, because somebody
forgot it before telling the scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from helpers.shadow_model import ShadowModel, answer_alone, draw_seed, run_step, run_until_done

from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.engine.sequence import FinishReason, Sequence, Status

MAX_TOKENS = 40


@pytest.fixture(autouse=True)
def fresh_inputs() -> None:
    draw_seed()


class Scene:
    """Two slots. A and B run, C waits; A is the one to be aborted."""

    def __init__(self, order: str = "ABC") -> None:
        config = SchedulerConfig(num_pages=64, max_running=2, max_seq_len=400, prefill_tokens=64, page_size=8)
        self.scheduler, self.model = Scheduler(config), ShadowModel(config)
        self.seqs = {name: Sequence(ord(name), self._prompt(name), MAX_TOKENS) for name in "ABC"}
        for name in order:
            self.scheduler.add(self.seqs[name])

    def _prompt(self, name: str) -> list[int]:
        return [random.randrange(50_000) for _ in range({"A": 100, "B": 20, "C": 5}[name])]

    def steps(self, n: int) -> None:
        for _ in range(n):
            run_step(self.scheduler, self.model)

    def abort_a(self) -> None:
        a = self.seqs["A"]
        assert self.scheduler.abort(a.seq_id) is a
        assert self.scheduler.abort(a.seq_id) is None
        assert (a.pages, a.slot, a.finish_reason) == ([], None, FinishReason.ABORT)
        self.scheduler.check_invariants()


def while_waiting() -> Scene:
    scene = Scene(order="BCA")
    scene.steps(1)
    assert scene.seqs["A"].status is Status.WAITING
    scene.abort_a()
    return scene


def between_two_prefill_chunks() -> Scene:
    scene = Scene()
    scene.steps(1)
    assert 0 < scene.seqs["A"].num_computed < 100
    scene.abort_a()
    return scene


def within_a_decode_step() -> Scene:
    scene = Scene()
    scene.steps(4)
    batch = scene.scheduler.schedule()
    assert any(chunk.seq is scene.seqs["A"] for chunk in batch.chunks[: batch.num_decodes])
    tokens, before = scene.model.run(batch), list(scene.seqs["A"].output_ids)
    scene.abort_a()
    scene.scheduler.postprocess(batch, tokens)
    assert scene.seqs["A"].output_ids == before, "the token of the step in flight is dropped"
    return scene


def within_a_prefill_step() -> Scene:
    scene = Scene()
    batch = scene.scheduler.schedule()
    scene.abort_a()
    scene.scheduler.postprocess(batch, {})
    return scene


def after_a_preemption() -> Scene:
    scene = Scene()
    scene.steps(4)
    scene.scheduler.rollback(scene.scheduler.schedule())
    assert scene.seqs["A"].status is Status.WAITING and scene.seqs["A"].output_ids
    scene.abort_a()
    return scene


@pytest.mark.parametrize(
    "situation",
    [
        while_waiting,
        between_two_prefill_chunks,
        within_a_prefill_step,
        within_a_decode_step,
        after_a_preemption,
    ],
)
def test_an_aborted_request_leaves_at_once_and_the_others_answer_as_if_alone(situation: Callable[[], Scene]) -> None:
    scene = situation()
    scheduler, a = scene.scheduler, scene.seqs["A"]
    batch = run_step(scheduler, scene.model)
    assert all(chunk.seq is not a for chunk in batch.chunks)
    assert scene.seqs["C"].status is Status.RUNNING, "the slot is free for C in the very next step"
    run_until_done(scheduler, scene.model)
    assert scheduler.pages.num_free == 64 and scheduler.slots.num_free == 2
    for name in "BC":
        seq = scene.seqs[name]
        assert seq.output_ids == answer_alone(seq.prompt_ids, MAX_TOKENS, 400)


def test_an_abort_after_the_last_token_does_nothing() -> None:
    scene = Scene()
    a = scene.seqs["A"]
    while a.status is not Status.FINISHED:
        scene.steps(1)
    assert scene.scheduler.abort(a.seq_id) is None
    assert (a.finish_reason, len(a.output_ids)) == (FinishReason.LENGTH, MAX_TOKENS)
    run_until_done(scene.scheduler, scene.model)


def test_an_abort_of_an_unknown_request_does_nothing() -> None:
    assert Scene().scheduler.abort(12345) is None
