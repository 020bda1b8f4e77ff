"""Each rule of the scheduler by itself, on the smallest situation that shows it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.shadow_model import ShadowModel, add, answer_alone, draw_seed, plan, run_step, run_until_done

from labkit.engine.pages import PageAccountingError
from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.engine.sequence import FinishReason, Sequence, Status
from labkit.errors import ConfigError, EmptyPromptError, LabkitError, PromptTooLongError, RequestError


@pytest.fixture(autouse=True)
def fresh_inputs() -> None:
    draw_seed()


def make(**limits: Any) -> tuple[Scheduler, ShadowModel]:
    config = SchedulerConfig(**{"num_pages": 100, "max_running": 8, "max_seq_len": 1000, "page_size": 4} | limits)
    return Scheduler(config), ShadowModel(config)


# Sequence


def test_token_ids_reads_across_prompt_and_output() -> None:
    seq = Sequence(0, [1, 2, 3], 9, output_ids=[4, 5])
    everything = [1, 2, 3, 4, 5]
    for start in range(6):
        for stop in range(start, 6):
            assert seq.token_ids(start, stop) == everything[start:stop]
    assert (len(seq), seq.num_uncomputed) == (5, 5)


def test_sequences_compare_by_identity() -> None:
    assert Sequence(0, [1], 1) != Sequence(0, [1], 1)


# Admission


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "error", "named"),
    [
        (0, 5, EmptyPromptError, "no token"),
        (20, 5, PromptTooLongError, "prompt has 20 tokens"),
        (21, 5, PromptTooLongError, "Shorten the prompt to 19"),
        (10, 7, PromptTooLongError, "16"),
        (19, 1, PromptTooLongError, "16"),
        (3, 0, RequestError, "max_tokens is 0"),
    ],
)
def test_the_impossible_is_refused_and_the_others_finish(
    prompt: int, max_tokens: int, error: type[LabkitError], named: str
) -> None:
    scheduler, model = make(max_seq_len=20, num_pages=4)
    [other] = add(scheduler, (9, 7))
    run_step(scheduler, model)
    with pytest.raises(error, match=named) as caught:
        scheduler.add(Sequence(7, list(range(prompt)), max_tokens))
    assert caught.value.cure
    run_until_done(scheduler, model)
    assert other.output_ids == answer_alone(other.prompt_ids, 7, 20)


def test_what_just_fits_the_pool_or_the_limit_runs() -> None:
    scheduler, model = make(max_seq_len=20, num_pages=5)
    full, capped = add(scheduler, (10, 10), (19, 500))
    run_until_done(scheduler, model)
    assert (len(full), len(capped)) == (20, 20)
    assert capped.finish_reason is FinishReason.LENGTH


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    scheduler, model = make()
    scheduler.add(Sequence(3, [1], 1))
    with pytest.raises(RequestError, match="3"):
        scheduler.add(Sequence(3, [1], 1))
    run_until_done(scheduler, model)
    scheduler.add(Sequence(3, [1], 1))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None])
@pytest.mark.parametrize("name", ["num_pages", "max_running", "page_size", "mixed_prefill_tokens", "tile_size"])
def test_config_refuses_what_is_no_positive_integer(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        make(**{name: value})


def test_admission_keeps_the_order_of_arrival_even_if_a_later_one_would_fit() -> None:
    scheduler, model = make(num_pages=6)
    a, big, small = add(scheduler, (12, 4), (16, 4), (1, 2))
    batch = run_step(scheduler, model)
    assert plan(batch) == [(a.seq_id, 0, 12)]
    assert list(scheduler.waiting) == [big, small]


def test_admission_asks_for_a_free_slot() -> None:
    scheduler, model = make(max_running=2)
    add(scheduler, (3, 2), (3, 5), (3, 5))
    assert len(run_step(scheduler, model).chunks) == 2
    run_step(scheduler, model)
    assert plan(run_step(scheduler, model)) == [(1, 4, 1), (2, 0, 3)]


def test_admission_asks_for_the_page_of_the_first_sampled_token() -> None:
    scheduler, model = make(num_pages=4)
    first, second = add(scheduler, (8, 2), (4, 4))
    run_step(scheduler, model)  # the first takes 3 pages (8 tokens and one more), the second needs 2
    assert (len(first.pages), second.status) == (3, Status.WAITING)


# Budgets and order


def test_prefill_budget_of_a_step_that_only_prefills() -> None:
    scheduler, model = make(prefill_tokens=10, mixed_prefill_tokens=3)
    add(scheduler, (14, 2), (9, 2))
    assert plan(run_step(scheduler, model)) == [(0, 0, 10)]
    assert plan(run_step(scheduler, model)) == [(0, 10, 4), (1, 0, 6)]


def test_decodes_come_first_and_leave_prefill_the_smaller_budget() -> None:
    scheduler, model = make(prefill_tokens=10, mixed_prefill_tokens=3)
    add(scheduler, (10, 9), (14, 2))
    run_step(scheduler, model)
    batch = run_step(scheduler, model)
    assert plan(batch) == [(0, 10, 1), (1, 0, 3)]
    assert (batch.num_decodes, batch.num_tokens, batch.step) == (1, 4, 1)
    assert plan(run_step(scheduler, model)) == [(0, 11, 1), (1, 3, 3)]


def test_a_prefill_tail_of_one_token_is_no_decode() -> None:
    scheduler, model = make(prefill_tokens=4, mixed_prefill_tokens=1)
    add(scheduler, (5, 3), (9, 3))
    run_step(scheduler, model)
    batch = run_step(scheduler, model)
    assert plan(batch) == [(0, 4, 1), (1, 0, 3)]
    assert batch.num_decodes == 0


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    scheduler, model = make(prefill_tokens=4)
    [seq] = add(scheduler, (10, 1))
    batches = run_until_done(scheduler, model)
    assert [chunk.samples for batch in batches for chunk in batch.chunks] == [False, False, True]
    assert len(seq.output_ids) == 1


def test_an_idle_scheduler_plans_an_empty_batch() -> None:
    scheduler, _ = make()
    assert not scheduler.has_work
    assert not scheduler.schedule()


@pytest.mark.parametrize("budget", [1, 2, 7, 64, 100])
@pytest.mark.parametrize("mixed", [1, 5, 64])
def test_answers_do_not_depend_on_the_budgets(budget: int, mixed: int) -> None:
    scheduler, model = make(prefill_tokens=budget, mixed_prefill_tokens=mixed, num_pages=20)
    seqs = add(scheduler, *[(random.randint(1, 40), random.randint(1, 30)) for _ in range(8)])
    run_until_done(scheduler, model)
    assert [s.output_ids for s in seqs] == [answer_alone(s.prompt_ids, s.max_tokens, 1000) for s in seqs]


def test_the_order_of_arrival_is_the_order_of_first_tokens() -> None:
    scheduler, model = make(num_pages=16, max_running=3, prefill_tokens=6, mixed_prefill_tokens=4)
    seqs = add(scheduler, *[(random.randint(1, 20), random.randint(1, 12)) for _ in range(20)])
    first_sampled: list[int] = []
    for batch in run_until_done(scheduler, model):
        for chunk in batch.chunks:
            if chunk.samples and chunk.seq.seq_id not in first_sampled:
                first_sampled.append(chunk.seq.seq_id)
    assert first_sampled == [seq.seq_id for seq in seqs]


# Another admission policy


class AnyOrder(Scheduler):
    def pick_next(self) -> Sequence:
        return random.choice(self.waiting)


@pytest.mark.parametrize("num_pages", [12, 16, 24])
def test_a_policy_that_lets_others_overtake_keeps_the_books_the_batch_order_and_the_answers(num_pages: int) -> None:
    config = SchedulerConfig(num_pages, max_running=4, max_seq_len=1000, page_size=4, prefill_tokens=8)
    scheduler, model = AnyOrder(config), ShadowModel(config)
    seqs = add(scheduler, *[(random.randint(1, 24), random.randint(1, 24)) for _ in range(40)])
    for batch in run_until_done(scheduler, model):
        for part in (batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]):
            assert [c.seq.arrival for c in part] == sorted(c.seq.arrival for c in part)
    assert sum(seq.num_preemptions for seq in seqs) > 0
    assert [s.output_ids for s in seqs] == [answer_alone(s.prompt_ids, s.max_tokens, 1000) for s in seqs]


# Preemption


def full_pool() -> tuple[Scheduler, ShadowModel, list[Sequence]]:
    """Three decoding sequences fill nine pages; the oldest needs its next page in the coming step."""
    scheduler, model = make(num_pages=9)
    seqs = add(scheduler, (10, 26), (9, 20), (8, 20))
    for _ in range(3):
        run_step(scheduler, model)
    assert scheduler.pages.num_free == 0
    assert [len(seq) for seq in seqs] == [13, 12, 11]
    return scheduler, model, seqs


def test_the_youngest_is_preempted_and_goes_to_the_front_with_its_tokens() -> None:
    scheduler, model, (a, b, youngest) = full_pool()
    [late] = add(scheduler, (1, 1))
    outputs = list(youngest.output_ids)
    batch = run_step(scheduler, model)
    assert batch.preempted == (youngest,)
    assert plan(batch) == [(a.seq_id, 12, 1), (b.seq_id, 11, 1)]
    assert list(scheduler.waiting) == [youngest, late]
    assert (youngest.output_ids, youngest.num_computed, youngest.num_preemptions) == (outputs, 0, 1)
    assert youngest.pages == [] and youngest.slot is None and youngest.status is Status.WAITING


def test_a_recompute_is_a_prefill_of_prompt_and_output() -> None:
    scheduler, model, (a, b, youngest) = full_pool()
    run_step(scheduler, model)
    scheduler.abort(a.seq_id)
    batch = run_step(scheduler, model)
    assert plan(batch) == [(b.seq_id, 12, 1), (youngest.seq_id, 0, 11)]
    assert batch.num_decodes == 1


def test_preempted_sequences_answer_as_if_alone() -> None:
    scheduler, model, seqs = full_pool()
    batches = run_until_done(scheduler, model)
    assert sum(len(batch.preempted) for batch in batches) == sum(seq.num_preemptions for seq in seqs) > 0
    assert seqs[0].num_preemptions == 0
    for seq in seqs:
        assert seq.output_ids == answer_alone(seq.prompt_ids, seq.max_tokens, 1000)


def test_the_youngest_gives_way_itself_rather_than_evict_an_older_one() -> None:
    scheduler, model = make(num_pages=5)
    old, young = add(scheduler, (4, 14), (7, 10))
    batch = run_step(scheduler, model)
    while not batch.preempted:
        batch = run_step(scheduler, model)
    assert batch.preempted == (young,)
    assert plan(batch) == [(old.seq_id, len(old) - 2, 1)]


def test_several_preempted_sequences_wait_in_order_of_arrival() -> None:
    scheduler, model = make(num_pages=12)
    seqs = add(scheduler, (3, 40), (3, 40), (3, 40), (3, 40), (3, 40))
    while sum(seq.num_preemptions for seq in seqs) < 3:
        run_step(scheduler, model)
    arrivals = [seq.arrival for seq in scheduler.waiting]
    assert arrivals == sorted(arrivals) and len(arrivals) >= 2


def test_a_recomputed_sequence_is_scheduled_for_exactly_its_tokens() -> None:
    scheduler, model = make(num_pages=8, page_size=64, prefill_tokens=128, mixed_prefill_tokens=128)
    old, young = add(scheduler, (100, 300), (200, 100))
    while not young.num_preemptions:
        run_step(scheduler, model)
    total = len(young)
    scheduler.abort(old.seq_id)
    lengths: list[int] = []
    while not young.decoding:
        [chunk] = run_step(scheduler, model).chunks
        lengths.append(chunk.length)
        assert chunk.start + chunk.length <= 64 * len(young.pages)
    assert sum(lengths) == total
    run_until_done(scheduler, model)
    assert young.output_ids == answer_alone(young.prompt_ids, 100, 1000)


# Endings


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    scheduler, model = make()
    [seq] = add(scheduler, (3, 1))
    run_until_done(scheduler, model)
    assert seq.finish_reason is FinishReason.LENGTH
    scheduler.finish(seq, FinishReason.ABORT)
    assert seq.finish_reason is FinishReason.LENGTH
    scheduler.finish(seq, FinishReason.STOP)
    assert seq.finish_reason is FinishReason.STOP
    scheduler.check_invariants()


def test_a_failed_step_is_recomputed_with_the_same_answer() -> None:
    scheduler, model = make(prefill_tokens=8, mixed_prefill_tokens=2)
    seqs = add(scheduler, (6, 5), (9, 5), (4, 5))
    for _ in range(3):
        run_step(scheduler, model)
    batch = scheduler.schedule()
    model.compute(batch.chunks[0])
    scheduler.rollback(batch)
    scheduler.check_invariants()
    assert all(chunk.seq.status is Status.WAITING for chunk in batch.chunks)
    run_until_done(scheduler, model)
    assert [seq.output_ids for seq in seqs] == [answer_alone(seq.prompt_ids, 5, 1000) for seq in seqs]


def test_rollback_after_a_half_done_postprocess_keeps_the_tokens_that_were_booked() -> None:
    scheduler, model = make()
    first, second = add(scheduler, (6, 5), (9, 5))
    batch = scheduler.schedule()
    tokens = model.run(batch)
    with pytest.raises(KeyError):
        scheduler.postprocess(batch, {first.seq_id: tokens[first.seq_id]})
    scheduler.rollback(batch)
    assert (first.output_ids, second.output_ids) == ([tokens[first.seq_id]], [])
    run_until_done(scheduler, model)
    assert second.output_ids == answer_alone(second.prompt_ids, 5, 1000)


def test_check_invariants_notices_a_page_in_two_tables() -> None:
    scheduler, model = make()
    a, b = add(scheduler, (6, 5), (9, 5))
    run_step(scheduler, model)
    b.pages[0] = a.pages[0]
    with pytest.raises(PageAccountingError, match="one page table"):
        scheduler.check_invariants()
