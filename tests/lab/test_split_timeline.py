"""The blocks in the picture read every page once, as attention_decode divides them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from helpers.drawings import boxes, root_of

from labkit.device import use_executor
from labkit.lab.attention_run import random_operands
from labkit.lab.drawing import BLOCKS
from labkit.lab.split_timeline import Plan, blocks_of, split_timeline, timeline
from labkit.ops import attention_decode


def test_every_page_is_read_once(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        lengths = [draw.randint(1, 5000) for _ in range(draw.randint(1, 4))]
        parts, splits = draw.randint(1, 3), draw.randint(1, 90)
        read = Counter(
            (block.sequence, block.part, page)
            for block in blocks_of(lengths, parts, splits)
            for page in range(block.first, block.behind)
        )
        held = {(s, h, page) for s, n in enumerate(lengths) for h in range(parts) for page in range(-(-n // 64))}
        assert read == Counter(held)
        assert all(block.split < splits for block in blocks_of(lengths, parts, splits))


def test_nobody_reads_two_pages_at_once(seed: int) -> None:
    draw = random.Random(seed)
    plan = Plan(parts=2, splits=7, places=10, sms=5)
    jobs = timeline([draw.randint(1, 9000) for _ in range(5)], plan)
    for place in range(10):
        mine = sorted((job.start, job.block.pages) for job in jobs if job.place == place)
        assert [start for start, _ in mine] == [sum(pages for _, pages in mine[:i]) for i in range(len(mine))]


@pytest.mark.parametrize("rung", ["3_split_kv", "4_wide", "5_tensor_cores"])
@pytest.mark.parametrize(
    ("heads", "kv", "k_bits"), [(12, "fp16", 16), (16, "fp16", 16), (16, "int4", 4), (2, "int8", 8)]
)
def test_the_plan_is_that_of_the_operation(
    rung: str, heads: int, kv: str, k_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid that it launches: parts, splits, sequences."""
    grids = []

    class Recorder:
        def launch(self, grid: tuple[int, ...], *arguments: Any) -> None:
            grids.append(grid)

    monkeypatch.setattr(attention_decode, "_kernel", lambda *macros: Recorder())
    drawn = random_operands([3000, 100], heads=heads, kv_heads=2, head_dim=256, kv=kv)
    with use_executor("sim"):
        attention_decode.attention_decode(drawn.q, drawn.pages, drawn.batch, rung=rung)
    plan = Plan.of([3000, 100], heads, 2, rung=rung, k_bits=k_bits)
    assert grids == [(plan.parts, plan.splits, 2)] and plan.sms == 80


def test_the_plan_follows_what_is_asked() -> None:
    assert Plan.of([65536], 12, 2, splits=5).splits == 5
    few, many = (Plan.of([65536], 12, 2, sms=sms) for sms in (20, 80))
    assert 4 * few.places == many.places and few.splits < many.splits


def test_one_split_leaves_most_idle() -> None:
    """One sequence on two KV heads: two blocks, each on a multiprocessor of its own."""
    plan = Plan.of([65536], 12, 2, splits=1)
    assert {job.place for job in timeline([65536], plan)} == {0, 1}
    picture = split_timeline([65536], 12, 2, splits=1)
    assert f"2 of {plan.places} places" in picture.alt and "the busiest 1024 pages" in picture.alt
    assert f"{plan.places - 2:3} {'#' * (plan.places - 2)}" in picture.text


def test_the_planned_splits_keep_all_busy() -> None:
    picture, plan = split_timeline([65536], 12, 2), Plan.of([65536], 12, 2)
    jobs, root = timeline([65536], plan), root_of(picture)
    assert sum(len(boxes(root, colour)) for colour in BLOCKS) == len(jobs)
    assert len({job.place for job in jobs}) > 0.9 * plan.places
    longest = max(job.start + job.block.pages for job in jobs)
    assert f"the busiest {longest} pages" in picture.text.splitlines()[0]


def test_short_sequences_have_fewer_splits() -> None:
    assert [block.pages for block in blocks_of([130], 1, 40)] == [1, 1, 1]


@pytest.mark.parametrize("given", [([0], 1, 1), ([5], 0, 1), ([5], 1, 0), ([5], 3, 2)])
def test_what_cannot_be(given: tuple[list[int], int, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        split_timeline(*given)
    with pytest.raises(ValueError, match="1 or more"):
        split_timeline([5], 1, 1, splits=0)
