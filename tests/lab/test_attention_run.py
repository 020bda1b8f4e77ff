"""Runs of attention in chapters: the pages hold what was drawn, and a rung that is right is called right."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from labkit.lab.attention_run import OPERATIONS, random_operands, run_rung
from labkit.ops.ladders import LADDERS

BUILT = [(op, rung) for op in OPERATIONS if op in LADDERS for rung in LADDERS[op].rungs]


@pytest.mark.parametrize("kv", ["fp16", "int8", "int4", "k8v4"])
def test_operands(kv: str) -> None:
    drawn = random_operands([100, 64], rows=[3, 1], heads=4, kv_heads=2, kv=kv)
    assert drawn.q.shape == (4, 4, 64) and drawn.batch.row_starts.tolist() == [0, 3, 4]
    assert sorted(drawn.batch.table.flatten().tolist()) == [0, 1, 2, 3]
    k, v = drawn.pages.gather(drawn.batch.table[0])
    assert (k[:, :100].norm(dim=-1) > 1).all() and (v[:, :100].norm(dim=-1) > 1).all() and not k[:, 100:].any()
    assert drawn.kv_bytes == 164 * 2 * drawn.pages.format.bytes_per_head(64)


@pytest.mark.parametrize(("op", "rung"), BUILT)
def test_a_rung_is_judged(op: str, rung: str) -> None:
    run = run_rung(op, rung, random_operands([70], heads=2))
    assert run.matches and run.findings == [] and run.counters.total().warp_instructions > 0
    spoilt = run.y.clone()
    spoilt[0, 1, 5] = torch.nan
    assert not dataclasses.replace(run, y=spoilt).matches
    assert not dataclasses.replace(run, y=run.y * 1.01).matches
