"""What chapter 03 says about the rungs is so."""

from __future__ import annotations

import pytest
import torch

from labkit.device.sources import read_rung
from labkit.lab.reduction_tree import held_values
from labkit.lab.rmsnorm_ladder import RungRun, explorer_page, first_sum, run_changed, run_rung, run_text
from labkit.ops import rmsnorm
from labkit.sim.trace import Trace

ROWS, HIDDEN = 4, 512


@pytest.fixture(scope="module")
def runs() -> dict[str, RungRun]:
    return {rung: run_rung(rung, ROWS, HIDDEN, trace=True) for rung in rmsnorm.RUNGS}


def test_all_rungs_match_and_nothing_is_found(runs: dict[str, RungRun]) -> None:
    for run in runs.values():
        assert run.matches and not run.findings


def test_a_wrong_result_does_not_match(runs: dict[str, RungRun]) -> None:
    run = runs["1_naive"]
    spoilt = run.y.clone()
    spoilt[2, 100] += 0.05
    assert not RungRun(run.rung, run.x, spoilt, run.expected, run.result).matches


def test_barriers_fall_from_one_a_step_to_one(runs: dict[str, RungRun]) -> None:
    threads = rmsnorm.macros(HIDDEN)["THREADS"]
    assert runs["1_naive"].counters.barriers == ROWS * (1 + threads.bit_length() - 1)
    assert runs["2_shuffle"].counters.barriers == runs["3_vector"].counters.barriers == ROWS


def test_the_last_rung_needs_an_eighth_of_the_loads_of_x(runs: dict[str, RungRun]) -> None:
    def loads_of_x(run: RungRun) -> int:
        assert isinstance(run.counters, Trace)
        inside = range(run.x.data_ptr(), run.x.data_ptr() + run.x.nbytes)
        return sum(access.addresses[0] in inside for access in run.counters.at(space="global", kind="load", warp=0))

    assert loads_of_x(runs["1_naive"]) == 16 * ROWS  # twice eight
    assert loads_of_x(runs["3_vector"]) == ROWS


def test_traffic_is_that_of_the_formula(runs: dict[str, RungRun]) -> None:
    for run in runs.values():
        assert run.counters.dram_read_bytes == 2 * ROWS * HIDDEN + 4 * HIDDEN
        assert run.counters.dram_write_bytes == 2 * ROWS * HIDDEN


def test_fusion_saves_a_write_and_a_read_of_the_sum() -> None:
    fused, alone = (run_rung("3_vector", ROWS, HIDDEN, fused=yes).counters for yes in (True, False))
    separate = 3 * 2 * ROWS * HIDDEN + alone.dram_read_bytes + alone.dram_write_bytes
    assert separate - fused.dram_read_bytes - fused.dram_write_bytes == 2 * ROWS * HIDDEN


def test_the_first_sum_is_a_butterfly(runs: dict[str, RungRun]) -> None:
    assert [set(row) for row in held_values(first_sum(runs["2_shuffle"]))] == [{1}, {2}, {4}, {8}, {16}, {32}]
    with pytest.raises(ValueError, match="trace=True"):
        first_sum(run_rung("2_shuffle", 1, 64))


def test_the_text_as_it_is_finds_nothing_and_without_its_barrier_a_race() -> None:
    text = read_rung("rmsnorm", "1_naive").text
    sound = run_text(text, "1_naive", ROWS, HIDDEN)
    assert sound.matches and not sound.findings
    broken = text.replace("    __syncthreads();\n", "")
    assert text.count("__syncthreads") - broken.count("__syncthreads") == 1
    races = run_text(broken, "1_naive", ROWS, HIDDEN).findings
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "sums[threadIdx.x + half_way]" in each)
    assert {race.kind for race in races} == {"shared-race"}
    assert any((race.line, race.other.line if race.other else 0) == (line, line) for race in races)


def test_headers_are_found_for_changed_texts() -> None:
    assert run_text(read_rung("rmsnorm", "3_vector").text, "3_vector", 2, 128).matches


def test_the_explorer_shows_the_rung_and_its_headers(runs: dict[str, RungRun]) -> None:
    shown = explorer_page(runs["3_vector"])
    assert set(shown.files) == {"3_vector", "common/vector.cuh", "common/reduce.cuh"}
    own = read_rung("rmsnorm", "3_vector").text.splitlines()
    assert [line.text for line in shown.files["3_vector"]] == own
    total = runs["3_vector"].counters.total()
    lines = [line for each in shown.files.values() for line in each]
    assert sum(line.counts[0] for line in lines) == total.warp_instructions
    assert sum(line.counts[1] for line in lines) == total.global_load.sectors + total.global_store.sectors


def test_runs_are_random(runs: dict[str, RungRun]) -> None:
    assert not torch.equal(runs["1_naive"].x, runs["2_shuffle"].x)


def test_a_change_reaches_a_header() -> None:
    """Without the barrier in block_sum, which stands in a header of rung 2, warps race."""
    changed = run_changed("2_shuffle", "__syncthreads();", "", 2, 512)
    assert "shared-race" in {finding.kind for finding in changed.findings}
    assert run_changed("2_shuffle", "__syncthreads();", "__syncthreads() ;", 2, 512).matches


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stands neither in rmsnorm/2_shuffle\.cu nor in its headers"):
        run_changed("2_shuffle", "no such text", "", 2, 512)
