"""Where the scheduler cuts prompts that prefill sparsely: between tiles, at their end, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.shadow_model import ShadowModel, add, answer_alone, draw_seed, plan, run_step, run_until_done

from labkit.engine.scheduler import Scheduler, SchedulerConfig
from labkit.errors import ConfigError


@pytest.fixture(autouse=True)
def fresh_inputs() -> None:
    draw_seed()


def make(**limits: Any) -> tuple[Scheduler, ShadowModel]:
    defaults = {"num_pages": 100, "max_running": 8, "max_seq_len": 1000, "page_size": 4, "tile_size": 4}
    config = SchedulerConfig(**{**defaults, **limits})
    return Scheduler(config), ShadowModel(config)


def test_a_long_prompt_is_cut_between_tiles_and_a_short_one_anywhere() -> None:
    scheduler, model = make(prefill_tokens=10, sparse_threshold=12)
    add(scheduler, (13, 1), (11, 1), (12, 1))
    batches = run_until_done(scheduler, model)
    assert [plan(batch) for batch in batches] == [
        [(0, 0, 8)], [(0, 8, 5), (1, 0, 5)], [(1, 5, 6), (2, 0, 4)], [(2, 4, 8)],
    ]  # fmt: skip
    assert [[chunk.sparse for chunk in batch.chunks] for batch in batches] == [[1], [1, 0], [0, 1], [1]]


def test_what_is_left_of_a_budget_and_holds_no_tile_is_left() -> None:
    scheduler, model = make(prefill_tokens=10, sparse_threshold=8)
    add(scheduler, (7, 1), (9, 1), (2, 1))
    assert [plan(run_step(scheduler, model)) for _ in range(2)] == [[(0, 0, 7)], [(1, 0, 9), (2, 0, 1)]]


def test_recomputed_output_of_a_long_prompt_is_a_chunk_of_its_own() -> None:
    scheduler, model = make(num_pages=8, sparse_threshold=8)
    old, young = add(scheduler, (2, 30), (9, 20))
    while not young.num_preemptions:
        run_step(scheduler, model)
    assert len(young) > 12
    scheduler.abort(old.seq_id)
    first, second = run_step(scheduler, model), run_step(scheduler, model)
    assert [plan(first), plan(second)] == [[(1, 0, 9)], [(1, 9, len(young) - 10)]]
    assert [first.chunks[0].sparse, second.chunks[0].sparse] == [True, False]
    run_until_done(scheduler, model)
    assert young.output_ids == answer_alone(young.prompt_ids, 20, 1000)


@pytest.mark.parametrize("name", ["prefill_tokens", "mixed_prefill_tokens"])
def test_a_budget_that_holds_no_tile_is_refused(name: str) -> None:
    make(**{name: 3})  # nothing prefills sparsely
    make(**{name: 4}, sparse_threshold=8)
    with pytest.raises(ConfigError, match=f"{name} is 3, but sparse prefill works on tiles of 4"):
        make(**{name: 3}, sparse_threshold=8)
