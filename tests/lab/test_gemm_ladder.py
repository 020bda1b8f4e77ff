"""What chapter 07 says about the rungs is so."""

from __future__ import annotations

import pytest
import torch

from labkit.errors import KernelArgumentError
from labkit.lab.gemm_ladder import GemmRun, run_changed, run_rung
from labkit.ops.awq_gemm import RUNGS, TILINGS

SWIZZLE = "(piece ^ ((row >> 1) & 3))"
SMALL = (32, 128, 64)


@pytest.fixture(scope="module")
def runs() -> dict[str, GemmRun]:
    return {rung: run_rung(rung, 128, 256, 256) for rung in RUNGS}


def test_all_rungs_match_with_the_same_mma_and_nothing_is_found(runs: dict[str, GemmRun]) -> None:
    for run in runs.values():
        assert run.matches and not run.findings
        assert (run.counters.mma, run.useful, run.counters.bank_conflicts) == (8192, 1.0, 0)


def test_a_wrong_row_does_not_match(runs: dict[str, GemmRun]) -> None:
    run = runs["2_swizzled"]
    spoilt = run.y.clone()
    spoilt[7] += 0.01 * spoilt[7].norm() / 16
    assert not GemmRun(run.rung, run.x, run.weight, spoilt, run.result).matches


def test_a_weight_meets_as_many_rows_as_the_tile_has(runs: dict[str, GemmRun]) -> None:
    """Work besides the mma falls from one warp to the shared tile, and again to the large one, below four."""
    one, shared, large = (runs[rung].besides for rung in ("1_one_warp", "2_swizzled", "5_large_tile"))
    assert one > 1.5 * shared > 1.5 * large and large < 4


def test_two_buffers_need_half_of_the_barriers(runs: dict[str, GemmRun]) -> None:
    assert runs["2_swizzled"].counters.barriers == 2 * runs["3_double_buffer"].counters.barriers


def test_few_rows_waste_the_rest_of_a_tile() -> None:
    for rung, tiling in TILINGS.items():
        expected = 1.0 if rung == "4_small_m" else 8 / tiling.rows  # it has a way for eight rows
        assert run_rung(rung, 8, 256, 64).useful == expected


def test_without_the_swizzle_loads_take_twice_as_long() -> None:
    swizzled = run_changed("2_swizzled", SWIZZLE, f"{SWIZZLE} ", *SMALL)
    plain = run_changed("2_swizzled", SWIZZLE, "piece", *SMALL)
    assert swizzled.matches and plain.matches
    assert swizzled.counters.bank_conflicts == 0
    assert plain.counters.shared_load.cycles == 2 * swizzled.counters.shared_load.cycles


def test_a_barrier_that_is_missing_is_found() -> None:
    changed = run_changed("3_double_buffer", "__syncthreads();", "", *SMALL, trace=True)
    assert {finding.kind for finding in changed.findings} == {"shared-race"}


def test_what_cannot_be_changed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stands neither in awq_gemm/2_swizzled\.cu nor in its headers"):
        run_changed("2_swizzled", "no such text", "", *SMALL)
    with pytest.raises(KernelArgumentError, match="4_small_m"):
        run_changed("4_small_m", "float", "float ", *SMALL)


def test_runs_are_random(runs: dict[str, GemmRun]) -> None:
    assert not torch.equal(runs["1_one_warp"].x, runs["2_swizzled"].x)
