"""Hypothesis attacks the scheduler with random arrivals, aborts, stops and failures in tiny pools."""

from __future__ import annotations

import pytest
from helpers.shadow_model import ShadowModel, answer_alone, next_token
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from labkit.engine.scheduler import Batch, Chunk, Scheduler, SchedulerConfig
from labkit.engine.sequence import FinishReason, Sequence, Status
from labkit.errors import EmptyPromptError, PromptTooLongError

limits = {
    "num_pages": st.integers(1, 16),
    "max_running": st.integers(1, 5),
    "max_seq_len": st.integers(2, 60),
    "page_size": st.sampled_from([1, 2, 4, 8]),
}
dense = {"prefill_tokens": st.integers(1, 32), "mixed_prefill_tokens": st.integers(1, 12)}
sparse = {
    "prefill_tokens": st.integers(8, 32),
    "mixed_prefill_tokens": st.integers(8, 12),
    "sparse_threshold": st.integers(1, 40),
    "tile_size": st.sampled_from([1, 3, 4, 8]),
}
configs = st.builds(SchedulerConfig, **limits, **dense) | st.builds(SchedulerConfig, **limits, **sparse)
# (prompt length, max_tokens): mostly small ones that crowd the pool, some that can never fit, some empty
requests = st.tuples(st.integers(0, 12) | st.integers(1, 60), st.integers(1, 24))


class SchedulerMachine(RuleBasedStateMachine):
    """Every request that ends by itself must have the answer it gets alone, whatever happened beside it."""

    @initialize(config=configs)
    def start(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.model = ShadowModel(config)
        self.accepted: list[Sequence] = []
        self.cut_short: dict[int, FinishReason] = {}
        self.next_id = 0
        self._watch_oldest()

    # Events

    @rule(sizes=st.lists(requests, min_size=1, max_size=5))
    def arrive(self, sizes: list[tuple[int, int]]) -> None:
        for prompt_len, max_tokens in sizes:
            prompt = [next_token([self.next_id, position]) for position in range(prompt_len)]
            self._add(Sequence(self.next_id, prompt, max_tokens))
            self.next_id += 1

    def _add(self, seq: Sequence) -> None:
        if self._possible(seq):
            self.scheduler.add(seq)
            self.accepted.append(seq)
        else:
            self._expect_refusal(seq)

    @rule(steps=st.integers(1, 6))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            batch = self._schedule()
            self._postprocess(batch, self.model.run(batch))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.accepted))
        self._abort_twice(seq)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort_in_flight(self, data: st.DataObject) -> None:
        batch = self._schedule()
        tokens = self.model.run(batch)
        for seq in data.draw(st.lists(st.sampled_from(self.accepted), min_size=1, max_size=3)):
            self._abort_twice(seq)
        ended = [(seq, len(seq)) for seq in self.accepted if seq.status is Status.FINISHED]
        self._postprocess(batch, tokens)
        assert all(len(seq) == before for seq, before in ended), "a token came after the abort"

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.STOP, FinishReason.ERROR]))
    def finish(self, data: st.DataObject, reason: FinishReason) -> None:
        seq = data.draw(st.sampled_from([*self.scheduler.running, *self.scheduler.waiting]))
        self.cut_short[seq.seq_id] = reason
        self.scheduler.finish(seq, reason)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The step breaks off after some of its chunks, perhaps with an abort in between."""
        batch = self._schedule()
        for chunk in batch.chunks[: data.draw(st.integers(0, len(batch.chunks)))]:
            self.model.compute(chunk)
        if data.draw(st.booleans()):
            self._abort_twice(data.draw(st.sampled_from(self.accepted)))
        self.scheduler.rollback(batch)
        assert all(chunk.seq.status is not Status.RUNNING for chunk in batch.chunks)
        self._watch_oldest()

    # What must hold

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_invariants()
            assert len(self.scheduler.running) <= self.config.max_running

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        while self.scheduler.has_work:  # _schedule bounds the steps of each sequence
            self.advance(1)
        assert self.scheduler.pages.num_free == self.config.num_pages
        assert self.scheduler.slots.num_free == self.config.max_running
        for seq in self.accepted:
            self._check_answer(seq)

    def _check_answer(self, seq: Sequence) -> None:
        alone = answer_alone(seq.prompt_ids, seq.max_tokens, self.config.max_seq_len)
        assert seq.status is Status.FINISHED and not seq.pages and seq.slot is None
        assert seq.finish_reason is self.cut_short.get(seq.seq_id, FinishReason.LENGTH)
        assert seq.output_ids == (alone[: len(seq.output_ids)] if seq.seq_id in self.cut_short else alone)

    def _possible(self, seq: Sequence) -> bool:
        prompt_len = len(seq.prompt_ids)
        capacity = self.config.num_pages * self.config.page_size
        total = min(prompt_len + seq.max_tokens, self.config.max_seq_len)
        return 0 < prompt_len < self.config.max_seq_len and total <= capacity

    def _expect_refusal(self, seq: Sequence) -> None:
        before = (list(self.scheduler.running), list(self.scheduler.waiting))
        with pytest.raises(PromptTooLongError if seq.prompt_ids else EmptyPromptError):
            self.scheduler.add(seq)
        assert before == (list(self.scheduler.running), list(self.scheduler.waiting))
        assert self.scheduler.abort(seq.seq_id) is None

    def _abort_twice(self, seq: Sequence) -> None:
        ended = seq.status is Status.FINISHED
        assert self.scheduler.abort(seq.seq_id) is (None if ended else seq)
        assert self.scheduler.abort(seq.seq_id) is None
        assert not seq.pages and seq.slot is None
        if not ended:
            self.cut_short[seq.seq_id] = FinishReason.ABORT

    def _schedule(self) -> Batch:
        busy = self.scheduler.has_work
        batch = self.scheduler.schedule()
        self.scheduler.check_invariants()
        assert bool(batch) == busy, "there was work, but the step is empty"
        self._check_batch(batch)
        return batch

    def _postprocess(self, batch: Batch, tokens: dict[int, int]) -> None:
        self.scheduler.postprocess(batch, tokens)
        self.scheduler.check_invariants()
        self._check_nobody_starves()

    def _check_batch(self, batch: Batch) -> None:
        decodes, prefills = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        budget = self.config.mixed_prefill_tokens if decodes else self.config.prefill_tokens
        assert sum(chunk.length for chunk in prefills) <= budget
        assert all(chunk.length == 1 and chunk.samples and chunk.seq.output_ids for chunk in decodes)
        for part in (decodes, prefills):
            arrivals = [chunk.seq.arrival for chunk in part]
            assert arrivals == sorted(arrivals)
        assert len({chunk.seq.seq_id for chunk in batch.chunks}) == len(batch.chunks)
        assert not {chunk.seq.seq_id for chunk in batch.chunks} & {seq.seq_id for seq in batch.preempted}
        for chunk in batch.chunks:
            assert chunk.length > 0 and chunk.start == chunk.seq.num_computed
            assert chunk.start + chunk.length <= len(chunk.seq.pages) * self.config.page_size
            self._check_cuts(chunk)
        last_admitted = max((seq.arrival for seq in self.scheduler.running), default=-1)
        assert all(seq.arrival > last_admitted for seq in self.scheduler.waiting), "somebody was overtaken"
        assert {chunk.seq.seq_id for chunk in batch.chunks} == {seq.seq_id for seq in self.scheduler.running}

    def _check_cuts(self, chunk: Chunk) -> None:
        """Chunks of sparse prompts are whole tiles, except at the end of the prompt, which is always a cut."""
        threshold, prompt, end = self.config.sparse_threshold, len(chunk.seq.prompt_ids), chunk.start + chunk.length
        long = threshold is not None and prompt >= threshold
        assert chunk.sparse == (long and chunk.start < prompt)
        if chunk.sparse:
            assert chunk.start % self.config.tile_size == 0 and end <= prompt
            assert end == prompt or end % self.config.tile_size == 0

    # No starvation: whoever is the oldest alive advances by a token or more in each step, so it finishes within as
    # many steps as it has tokens, and then the next one is the oldest. Only a failed step sets it back.

    def _watch_oldest(self) -> None:
        live = [*self.scheduler.running, *self.scheduler.waiting]
        self.oldest = min(live, key=lambda seq: seq.arrival, default=None)
        self.steps_left = len(self.oldest.prompt_ids) + self.oldest.max_tokens if self.oldest else 0

    def _check_nobody_starves(self) -> None:
        self.steps_left -= 1
        if self.oldest is None or self.oldest.status is Status.FINISHED:
            self._watch_oldest()
        assert self.oldest is None or self.steps_left > 0, f"sequence {self.oldest.seq_id} starves"


def attack(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def test_thousands_of_random_events() -> None:
    attack(examples=100, steps=60)


@pytest.mark.slow
def test_a_hundred_thousand_random_events() -> None:
    attack(examples=1000, steps=120)
