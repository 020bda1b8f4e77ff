"""What labkit bench gdn measures: sizes, the bytes and products that it counts, and calls that compare equal work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.accuracy import relative_error

from labkit.bench.clock import LABKIT
from labkit.bench.gdn_calls import OPERATIONS, TORCH, arguments_of, calls_of
from labkit.bench.gdn_cases import GEOMETRIES, PARTS, Case, Geometry, gdn_cases, geometry
from labkit.device import use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.ops.state_batch import StateBatch

TINY = Geometry("tiny", 1, 2, 64, 64, 4)
UNEVEN = Geometry("uneven", 2, 6, 64, 128, 3)
CPU = torch.device("cpu")
EACH = [Case("conv", TINY, 2, 1), Case("decode", TINY, 2, 1), Case("prefill", TINY, 2, 70), Case("norm", TINY, 1, 5)]
SLOTS = {"conv": 2, "decode": 8, "prefill": 5}  # which argument holds all states or histories


def test_the_geometries() -> None:
    sizes = {g.name: (g.key_heads, g.value_heads, g.key_dim, g.value_dim, g.width) for g in map(geometry, GEOMETRIES)}
    assert sizes == {
        "27b-tp2": (8, 24, 128, 128, 4),
        "27b": (16, 48, 128, 128, 4),
        "labkit-tiny": (2, 4, 128, 128, 4),
    }
    assert geometry("27b").channels == 10240 and geometry("27b-tp2").channels == 5120


def test_what_was_asked_for_is_measured() -> None:
    cases = gdn_cases(PARTS, GEOMETRIES)
    assert {case.geometry.name for case in cases} == set(GEOMETRIES) and len(cases) == 3 * (4 + 3 + 3 + 4)
    sizes = {part: [(c.sequences, c.tokens) for c in cases if c.part == part][: len(cases) // 3] for part in PARTS}
    steps = [(1, 1), (8, 1), (64, 1)]
    assert sizes["decode"] == 3 * steps and sizes["prefill"] == 3 * [(1, 1024), (1, 4096), (8, 512)]
    assert sizes["conv"] == sizes["norm"] == 3 * [*steps, (1, 4096)]
    chosen = gdn_cases(PARTS, ["27b"], [2], [100])
    assert [(c.part, c.sequences, c.tokens) for c in chosen] == [
        ("conv", 2, 1), ("conv", 1, 100), ("decode", 2, 1), ("prefill", 1, 100), ("norm", 2, 1), ("norm", 1, 100)
    ]  # fmt: skip


@pytest.mark.parametrize("g", [TINY, UNEVEN], ids=str)
@pytest.mark.parametrize(
    ("part", "sequences", "tokens"),
    [(part, *size) for part in PARTS for size in ((3, 1), (2, 70)) if part != "decode" or size[1] == 1],
)
def test_bytes_are_those_of_the_tensors(part: str, sequences: int, tokens: int, g: Geometry) -> None:
    """What a call is given and gives; of all states and histories those of its sequences, written and, later, read."""
    case = Case(part, g, sequences, tokens)
    [given] = arguments_of(case, 1, CPU)
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    nbytes = sum(x.numel() * x.element_size() for x in tensors)
    if part in SLOTS and case.start:
        nbytes += given[SLOTS[part]].nbytes  # read and written
    [result] = [call() for call in calls_of(case, [given], False)[TORCH]]
    width = 4 if part == "prefill" else 2  # bytes of the kernels' result: other than the definition's
    assert case.moved_bytes == nbytes + result.numel() * width


def test_single_rows_go_on_and_prompts_begin() -> None:
    for case, start in ((Case("conv", TINY, 2, 1), 4096), (Case("conv", TINY, 1, 4096), 0), (EACH[2], 0)):
        batches = [x for given in arguments_of(case, 2, CPU) for x in given if isinstance(x, StateBatch)]
        assert len(batches) == 2 and all(b.starts.tolist() == [start] * case.sequences for b in batches)
        assert all(b.row_starts.diff().tolist() == [case.tokens] * case.sequences for b in batches)


def test_flops_count_the_products_of_each_chunk() -> None:
    """By masks: what lies below a diagonal, up to it, and whole matrices; 70 rows are chunks of 64 and 6."""
    dk, dv, total = UNEVEN.key_dim, UNEVEN.value_dim, 0
    for rows in (64, 6):
        full = torch.ones(rows, rows)
        below, upto = int(full.tril(-1).sum()), int(full.tril().sum())
        keys, solved, scores, values = below * dk, below * (dk + dv), upto * dk, upto * dv
        with_state = 3 * rows * dk * dv  # W S, Q S, K^T V'
        total += 2 * (keys + solved + scores + values + with_state)
    assert Case("prefill", UNEVEN, 1, 70).flop == 6 * total
    assert Case("prefill", UNEVEN, 3, 70).flop == 18 * total


def test_calls_share_no_slot() -> None:
    batches = [given[9] for given in arguments_of(Case("decode", TINY, 5, 1), 20, CPU)]
    slots = torch.cat([batch.slots for batch in batches])
    assert sorted(slots.tolist()) == list(range(100)) != slots.tolist()


@pytest.mark.parametrize("case", EACH, ids=str)
def test_calls_share_no_memory(case: Case) -> None:
    """Whatever is not a pool of slots is each call's own, results included."""
    drawn = arguments_of(case, 3, CPU)
    kept = SLOTS.get(case.part)
    own = [[x for i, x in enumerate(given) if isinstance(x, torch.Tensor) and i != kept] for given in drawn]
    starts = [x.data_ptr() for tensors in own for x in tensors]
    assert len(set(starts)) == len(starts) > 3
    calls = calls_of(case, drawn, False)[LABKIT]
    for call in [*calls, *calls]:
        call()
    assert len({call.result.data_ptr() for call in calls}) == 3


@pytest.mark.parametrize("case", EACH, ids=str)
def test_numbers_stay_tame(case: Case) -> None:
    """Replays go over the same states again and again."""
    for call in calls_of(case, arguments_of(case, 2, CPU), False)[LABKIT] * 20:
        result = call()
        assert isinstance(result, torch.Tensor) and result.isfinite().all() and result.abs().max() < 1e3


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
@pytest.mark.parametrize("case", EACH, ids=str)
def test_kernels_and_torch_do_equal_work(case: Case, seed: int) -> None:
    """On the simulator, with arguments drawn alike: the same results, and the same states behind them."""
    case = replace(case, sequences=1, tokens=3) if case.part == "prefill" else case
    kept = SLOTS.get(case.part)
    found: dict[str, tuple[Any, Any]] = {}
    for name in (LABKIT, TORCH):
        torch.manual_seed(seed)
        [_, given] = arguments_of(case, 2, CPU)
        with use_executor("sim"):
            [call] = calls_of(case, [given], False)[name]
            found[name] = call(), given[kept] if kept else torch.zeros(1, 1)
    (result, state), (wanted, left) = found[LABKIT], found[TORCH]
    assert result.shape == wanted.shape
    relative_error(result.flatten(1), wanted.flatten(1).double(), 2e-3)
    torch.testing.assert_close(state, left, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("case", EACH, ids=str)
def test_every_rung_is_asked_for_by_name(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(*given: Any, rung: str | None) -> torch.Tensor:
        asked.append(rung)
        return torch.zeros(1)

    operation = replace(OPERATIONS[case.part], run=run)
    monkeypatch.setitem(OPERATIONS, case.part, operation)  # type: ignore[arg-type]
    for calls in calls_of(case, arguments_of(case, 1, CPU), all_rungs=True).values():
        calls[0]()
    assert asked == [None, *operation.rungs]
