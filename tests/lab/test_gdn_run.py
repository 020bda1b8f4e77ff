"""Runs of Gated DeltaNet in chapter 12: right ones are called right, and what they load is counted."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from labkit.device.executor import use_executor
from labkit.lab.gdn_run import (
    GdnRun,
    costly_lines,
    exact_recurrence,
    random_gdn_operands,
    run_decode,
    run_prefill,
    state_traffic,
)
from labkit.ops import gdn_decode, gdn_prefill


def is_judged(run: GdnRun) -> bool:
    """A run that is right matches, and would not if its outputs or its state were a little off, or no number."""
    spoilt = run.out.clone()
    spoilt[0, -1, 3] = torch.nan
    others = [dataclasses.replace(run, out=out) for out in (run.out * 1.01, spoilt)]
    others.append(dataclasses.replace(run, state=run.state * 1.01))
    return run.matches and not any(other.matches for other in others)


@pytest.mark.parametrize("rung", gdn_decode.RUNGS)
def test_a_step_is_judged(rung: str) -> None:
    run = run_decode(rung, random_gdn_operands([1, 1], [0, 7], key_heads=1, heads=2))
    assert is_judged(run) and run.findings == [] and len(run.counters) == 1 and run.instructions[0] > 0


@pytest.mark.parametrize("rung", gdn_prefill.RUNGS)
def test_a_prefill_is_judged(rung: str) -> None:
    run = run_prefill(rung, random_gdn_operands([5, 3], [0, 62], heads=2))
    launches = 1 if rung == "1_recurrent" else 2
    assert is_judged(run) and run.findings == [] and len(run.instructions) == launches
    assert (run.mma > 0) == (rung == "3_tensor_cores")


def test_the_operands_stay_as_they_are() -> None:
    drawn = random_gdn_operands([1], [3])
    before = drawn.state.clone()
    assert not torch.equal(run_decode("3_wide", drawn).state, before) and torch.equal(drawn.state, before)


def test_the_recurrence_is_the_definition() -> None:
    """Two rows of one head, written out."""
    drawn = random_gdn_operands([2])
    q, k, v, g, beta = (x[:, 0] for x in drawn.by_heads())
    s = k[0][:, None] * (beta[0] * v[0])
    faded = g[1].exp() * s
    s2 = faded + k[1][:, None] * (beta[1] * (v[1] - faded.T @ k[1]))
    out, state = exact_recurrence(drawn)
    assert torch.allclose(out[:, 0], torch.stack((s.T @ q[0], s2.T @ q[1])))
    assert torch.allclose(state[0, 0], s2)


def test_parts_make_the_whole() -> None:
    drawn = random_gdn_operands([100], [30])
    with use_executor("torch"):
        whole = drawn.part(0, 100, drawn.state.clone()).prefill()
        first = drawn.part(0, 40, drawn.state.clone())
        outs = [first.prefill(), drawn.part(40, 100, first.state).prefill()]
    assert torch.allclose(torch.cat(outs), whole, atol=1e-4)


def test_moved_operands_are_the_same() -> None:
    drawn = random_gdn_operands([1, 1], [4, 0])
    moved = drawn.on("cpu")
    assert moved.batch.spans == drawn.batch.spans and torch.equal(moved.qkv, drawn.qkv)


def test_what_the_state_costs() -> None:
    drawn = random_gdn_operands([1], [5])
    traffic = {rung: state_traffic(run_decode(rung, drawn, trace=True)) for rung in gdn_decode.RUNGS}
    assert [(t.loaded, t.stored) for t in traffic.values()] == [(3, 1), (1, 1), (1, 1)]
    elements = 64 * 64
    assert traffic["2_one_pass"].load_requests == elements // 32
    assert traffic["3_wide"].load_requests == traffic["3_wide"].store_requests == elements // 32 // 4
    fresh = state_traffic(run_decode("3_wide", random_gdn_operands([1]), trace=True))
    assert (fresh.loaded, fresh.load_requests, fresh.stored) == (0, 0, 1)


def test_traffic_needs_a_trace() -> None:
    with pytest.raises(ValueError, match="not traced"):
        state_traffic(run_decode("3_wide", random_gdn_operands([1])))


def test_costly_lines() -> None:
    run = run_decode("1_naive", random_gdn_operands([1], [5]))
    shares = costly_lines(run, "gdn_decode", 0, most=1000)
    assert sum(share for share, _ in shares) == pytest.approx(1)
    assert [share for share, _ in shares] == sorted((share for share, _ in shares), reverse=True)
    assert any("fmaf(step.old(i, column)" in text for _, text in costly_lines(run, "gdn_decode", 0, most=8))
