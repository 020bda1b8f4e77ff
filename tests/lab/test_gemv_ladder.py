"""What chapter 06 says about the rungs is so."""

from __future__ import annotations

import pytest
import torch

from labkit.errors import KernelArgumentError
from labkit.lab.gemv_ladder import GROUP, GemvRun, main_loop, random_operands, run_changed, run_rung
from labkit.ops.awq_gemv import RUNGS

STEP = "acc[m] = fmaf(w, value, acc[m]);"
IN_HALVES = "acc[m] = __half2float(__float2half_rn(fmaf(w, value, acc[m])));"


@pytest.fixture(scope="module")
def runs() -> dict[str, GemvRun]:
    x, weight = random_operands(1, 64, 512)
    return {rung: run_rung(rung, x, weight, trace=True) for rung in RUNGS}


def test_all_rungs_match_and_nothing_is_found(runs: dict[str, GemvRun]) -> None:
    for run in runs.values():
        assert run.matches and not run.findings


def test_a_wrong_output_does_not_match(runs: dict[str, GemvRun]) -> None:
    run = runs["3_magic_halves"]
    spoilt = run.y.clone()
    spoilt[0, 7] += 0.01 * spoilt.norm()
    assert not GemvRun(run.rung, run.x, run.weight, spoilt, run.result).matches


def test_loads_of_a_group_word_by_word_and_16_bytes_at_a_time(runs: dict[str, GemvRun]) -> None:
    groups = 512 // GROUP
    words, wide = runs["1_naive"].weight_loads, runs["2_wide_loads"].weight_loads
    assert len(words) == groups * (1 + GROUP // 8) and {load.nbytes for load in words} == {4}
    assert len(wide) == groups * (1 + GROUP // 32) and {load.nbytes for load in wide} == {4, 16}
    assert runs["1_naive"].counters.global_load.sectors > 1.9 * runs["2_wide_loads"].counters.global_load.sectors


def test_weight_loads_need_a_trace() -> None:
    with pytest.raises(ValueError, match="trace=True"):
        _ = run_rung("2_wide_loads", *random_operands(1, 32, 128)).weight_loads


def test_instructions_for_a_weight_fall_but_where_k_is_shared() -> None:
    x, weight = random_operands(1, 64, 6144)  # so long that adding up hardly counts, and that blocks share K
    runs = {rung: run_rung(rung, x, weight) for rung in RUNGS}
    naive, wide, magic, split, integer = (runs[rung].per_weight for rung in RUNGS)
    assert naive > 9.2 and wide < 0.9 * naive and magic < 0.6 * wide and magic < split and integer < 0.6 * magic
    read = {rung: run.counters.dram_read_bytes for rung, run in runs.items()}
    alone = weight.nbytes + x.nbytes
    assert all(read[rung] == alone for rung in RUNGS[:3]) and all(read[rung] > alone for rung in RUNGS[3:])


def test_machine_code_of_the_main_loops() -> None:
    per_weight = {}
    for rung in RUNGS:
        mix, count = main_loop(rung)
        per_weight[rung] = {name: times / count for name, times in mix.items()}
    assert per_weight["1_naive"]["I2F"] == per_weight["2_wide_loads"]["I2F"] == 1.0
    assert "I2F" not in per_weight["3_magic_halves"] and "I2F" not in per_weight["4_split_k"]
    assert per_weight["5_integer_dot"]["IDP"] == 0.5
    totals = {rung: sum(mix.values()) for rung, mix in per_weight.items()}
    assert totals["5_integer_dot"] < 3 < totals["3_magic_halves"] < 5 < totals["2_wide_loads"] < 9.2


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_the_last_rung_has_a_way_for_two_bytes_of_x_and_one_for_three(rows: int) -> None:
    (two, count), (three, same) = (main_loop(RUNGS[-1], rows, third_byte=third) for third in (False, True))
    assert count == same and two["IDP"] == 2 * rows * count // 4 and three["IDP"] == 3 * rows * count // 4
    assert 0 < two["LDS"] < three["LDS"] and two["STS"] == three["STS"] > 0 and two["LDG"] == three["LDG"] > 0


def test_sums_in_halves_overflow_where_an_outlier_meets_a_weight() -> None:
    x, weight = random_operands(1, 64, 256)
    x[0, 100] = 3e4
    same = run_changed("3_magic_halves", STEP, f"{STEP} ", x, weight)
    assert same.matches and same.y.isfinite().all() and not same.findings
    halves = run_changed("3_magic_halves", STEP, IN_HALVES, x, weight)
    assert not halves.matches and not halves.y.isfinite().all()


@pytest.mark.parametrize("rung", RUNGS[:3])
@pytest.mark.parametrize("shape", [(1, 264, 128), (3, 40, 256)])
def test_a_change_of_nothing_changes_nothing(rung: str, shape: tuple[int, int, int]) -> None:
    """The rung is launched as the op launches it, also where a last block is not full and for several rows."""
    x, weight = random_operands(*shape)
    changed = run_changed(rung, "return;", " return;", x, weight)
    assert changed.matches and torch.equal(changed.y, run_rung(rung, x, weight).y)


def test_a_barrier_that_is_missing_is_found() -> None:
    changed = run_changed("3_magic_halves", "__syncwarp();", "", *random_operands(1, 64, 256))
    assert {finding.kind for finding in changed.findings} == {"shared-race"}


def test_what_cannot_be_changed_is_refused() -> None:
    operands = random_operands(1, 32, 128)
    with pytest.raises(ValueError, match=r"stands neither in awq_gemv/2_wide_loads\.cu nor in its headers"):
        run_changed("2_wide_loads", "no such text", "", *operands)
    with pytest.raises(KernelArgumentError, match="4_split_k"):
        run_changed("4_split_k", "float", "float ", *operands)


def test_operands_are_random() -> None:
    (x, weight), (other_x, other_weight) = random_operands(1, 32, 128), random_operands(1, 32, 128)
    assert not torch.equal(x, other_x) and not torch.equal(weight.data, other_weight.data)
