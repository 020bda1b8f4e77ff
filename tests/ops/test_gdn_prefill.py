"""gdn_prefill beyond its rungs' checks: where prompts are cut, rounds, hard inputs, and layouts of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.accuracy import HALF_STEP
from helpers.ops_gdn_prefill import FP32_CHUNKS, TOLERANCES, Inputs, compare, exact, one_key, random_inputs, rounds_of
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.device.sim_executor import recorded_launches, simulated_with
from labkit.ops import gdn_prefill
from labkit.ops.gdn_prefill import RUNGS, chunk_bytes
from labkit.ops.state_batch import StateBatch
from labkit.sim.options import Options

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

CHUNKED = RUNGS[1:]
FLOPS = 2048  # of one mma.m8n8k4, which is four HMMA
QUIET = Options(counters=False)


def cut(inputs: Inputs, first: int, behind: int) -> Inputs:
    """Rows first .. behind - 1 of the only sequence; the state is shared."""
    [(_, _, start, slot)] = inputs.batch.spans
    batch = StateBatch.of([behind - first], [start + first], [slot])
    parts = {name: getattr(inputs, name)[first:behind] for name in ("qkv", "b", "a")}
    return replace(inputs, batch=batch, **parts)


# --- cuts and rounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", RUNGS)
def test_cut_at_multiples_of_64_a_prompt_gives_the_same_bits(rung: str, seed: int) -> None:
    """From position 40: the first chunk has 24 rows."""
    inputs = random_inputs(((170,), (40,), 1, 2, 64, 64))
    before = inputs.state.clone()
    with use_executor("sim"), simulated_with(QUIET):
        whole, end = inputs.run(rung), inputs.state.clone()
        inputs.state.copy_(before)
        parts = [cut(inputs, first, behind).run(rung) for first, behind in ((0, 24), (24, 152), (152, 170))]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(inputs.state.view(torch.int32), end.view(torch.int32))


@pytest.mark.parametrize("rung", CHUNKED)
def test_chunks_that_do_not_fit_the_workspace_go_in_rounds(rung: str, seed: int) -> None:
    """Two chunks a round of eight: sequences begin and end in the middle of rounds, two of them fresh."""
    inputs = random_inputs(((130, 1, 150, 3), (0, 70, 100, 0), 1, 2, 64, 64))
    before = inputs.state.clone()
    with use_executor("sim"), simulated_with(QUIET):
        whole, end = inputs.run(rung), inputs.state.clone()
        inputs.state.copy_(before)
        with recorded_launches(QUIET) as results, rounds_of(inputs, rung, 2):
            out = inputs.run(rung)
    assert len(results) == 2 * -(-inputs.batch.chunks // 2) and all(result.ok for result in results)
    assert torch.equal(out, whole) and torch.equal(inputs.state.view(torch.int32), end.view(torch.int32))


@pytest.mark.parametrize("rung", CHUNKED)
def test_the_workspace_is_bounded(rung: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 rows of Qwen3.5-27B: no launch is given more than 64 MiB, beside what comes in and goes out."""
    inputs = Inputs(
        *(torch.empty(16384, n).half() for n in (2 * 16 * 128 + 48 * 128, 48, 48)),
        *(torch.empty(48), torch.empty(48), torch.empty(1, 48, 128, 128)),
        StateBatch.of([16384], [0], [0]),
        16,
    )
    chunks: list[int] = []

    def noting(self: Kernel, grid: Any, block: Any, arguments: Any) -> None:
        if self.entry == "gdn_within_chunks":
            made = [x.tensor for x in arguments if isinstance(x, gdn_prefill.Out)]
            assert sum(x.nbytes for x in made) == grid[1] * 48 * chunk_bytes(rung, 128, 128) <= 64 << 20
            chunks.append(grid[1])

    monkeypatch.setattr(Kernel, "launch", noting)
    with use_executor("sim"):
        inputs.run(rung)
    assert sum(chunks) == 256 and len(set(chunks[:-1])) == 1


def test_a_thousand_rows(seed: int) -> None:
    """States go through 16 chunks."""
    with use_executor("sim"), simulated_with(QUIET):
        compare(random_inputs(((1000,), (7,), 1, 1, 64, 64)), None, TOLERANCES[RUNGS[-1]])


# --- hard inputs ------------------------------------------------------------------------------------------------------


def largest_values(inputs: Inputs, a_log: float) -> None:
    """Near the end of the half range; states too."""
    v = inputs.qkv[:, 128:]
    v.copy_(torch.empty(v.shape).uniform_(-6.5e4, 6.5e4))
    inputs.state *= 6e4 / inputs.state[inputs.batch.slots].abs().max()
    inputs.a_log.fill_(a_log)


def steady(inputs: Inputs, log_decay: float) -> None:
    """g of every row: a is 0, and softplus(0) is log 2."""
    inputs.a.zero_()
    inputs.dt_bias.zero_()
    inputs.a_log.copy_(torch.full((2,), -log_decay / 0.6931471805599453).log())


def scaled(inputs: Inputs, state: float, values: float) -> None:
    inputs.state *= state
    inputs.qkv[:, 128:] *= values


HARD: dict[str, Callable[[Inputs], object]] = {
    "one key, replaced": lambda inputs: one_key(inputs, 30.0),
    "one key, averaged": lambda inputs: one_key(inputs, 0.0),
    "large values": lambda inputs: largest_values(inputs, -1.0),
    "large values that stay": lambda inputs: largest_values(inputs, -14.0),
    "hardly any decay": lambda inputs: steady(inputs, -1e-6),
    "decay": lambda inputs: steady(inputs, -0.3),
    "strong decay": lambda inputs: steady(inputs, -30.0),
    "nothing stays": lambda inputs: steady(inputs, -1e5),
    "exp(a_log) is no half": lambda inputs: inputs.a_log.fill_(12.0),
    "large a": lambda inputs: inputs.a.copy_(torch.where(inputs.a < 0, -6e4, 6e4)),
    "strength 0": lambda inputs: inputs.b.fill_(-6e4),
    "strength 1": lambda inputs: inputs.b.fill_(6e4),
    "hardly any strength": lambda inputs: inputs.b.fill_(-12.0),
    "large states": lambda inputs: scaled(inputs, 1e6, 1e-2),
    "small states": lambda inputs: scaled(inputs, 1e-6, 1.0),
    "no values": lambda inputs: scaled(inputs, 1.0, 0.0),
    "no queries": lambda inputs: inputs.qkv[:, :64].zero_(),
    "no keys": lambda inputs: inputs.qkv[:, 64:128].zero_(),
}


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("change", HARD.values(), ids=HARD.keys())
def test_hard_inputs(change: Callable[[Inputs], object], rung: str, seed: int) -> None:
    """A chunk of 14 rows, one of 64 and one of two."""
    inputs = random_inputs(((80,), (50,), 1, 2, 64, 64))
    change(inputs)
    assert exact(inputs)[0].isfinite().all()
    with use_executor("sim"), simulated_with(QUIET):
        compare(inputs, rung, TOLERANCES[rung])


@pytest.mark.parametrize("rung", RUNGS)
def test_what_another_sequence_has_stays_with_it(rung: str, seed: int) -> None:
    """NaN and infinities in the rows before and behind a sequence, in the same blocks' reach."""
    inputs = random_inputs(((5, 60, 5), (0, 10, 30), 1, 2, 64, 64))
    rest = torch.cat((torch.arange(5), torch.arange(65, 70)))
    for x, bad in ((inputs.qkv, torch.inf), (inputs.b, torch.nan), (inputs.a, torch.nan)):
        x[rest] = bad
    alone = cut(replace(inputs, batch=StateBatch.of([70], [5], [int(inputs.batch.slots[1])])), 5, 65)
    expected, expected_state, _ = exact(alone)
    with use_executor("sim"), simulated_with(QUIET):
        out = inputs.run(rung)
    torch.testing.assert_close(out[5:65].double(), expected, rtol=2e-3, atol=2e-3 * expected.abs().max().item())
    state = inputs.state[alone.batch.slots].double()
    torch.testing.assert_close(state, expected_state, rtol=2e-3, atol=2e-3 * expected_state.abs().max().item())


def test_the_tensor_cores_lose_no_more_than_halves_do(seed: int) -> None:
    """The rung in fp32 is as good as fp32; on random rows the other is off by about a rounding to halves."""
    for rung, tolerance in (("2_chunked", FP32_CHUNKS / 4), ("3_tensor_cores", 2 * HALF_STEP)):
        inputs = random_inputs(((64,), (64,), 1, 1, 128, 64))
        with use_executor("sim"), simulated_with(QUIET):
            compare(inputs, rung, tolerance)


def test_b_and_a_may_lie_any_way(seed: int) -> None:
    """Column after column, and qkv at an odd address: copies give the same bits."""
    inputs = random_inputs(((5,), (0,), 1, 2, 64, 64))
    room = torch.empty(inputs.qkv.numel() + 1).half()[1:].view(inputs.qkv.shape).copy_(inputs.qkv)

    def turned(x: Tensor) -> Tensor:
        return x.T.contiguous().T

    with use_executor("sim"):
        expected = inputs.run()
        moved = replace(inputs, qkv=room, b=turned(inputs.b), a=turned(inputs.a))
        assert torch.equal(moved.run(), expected)
