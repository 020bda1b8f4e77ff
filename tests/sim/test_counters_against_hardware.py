"""Sectors, requests and bank conflicts of textbook access patterns are those that a profiler counted on an H200."""

from __future__ import annotations

import json

import pytest
from sim.hardware import store
from sim.hardware.access_patterns import ACCESS, PATTERNS
from sim.hardware.simulate import simulate_program

from labkit.sim.counters import Counters

# The profiler's name -> the simulator's figure.
FIGURES = {
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": lambda c: c.global_load.sectors,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": lambda c: c.global_store.sectors,
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": lambda c: c.global_load.requests,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": lambda c: c.global_store.requests,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": lambda c: c.shared_load.conflicts,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": lambda c: c.shared_store.conflicts,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": lambda c: c.shared_load.cycles,
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": lambda c: c.shared_store.cycles,
}

# An H200 serves both halves of a warp at once where they read the same 8-byte words; the simulator counts two.
KNOWN_DIFFERENCES = {
    "shared, double, broadcast": {"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 64},
}


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, float]]:
    return json.loads((store.RECORDED / "access.json").read_text())["patterns"]


@pytest.fixture(scope="module")
def counted() -> dict[str, Counters]:
    _, findings, counters = simulate_program(ACCESS)
    assert not findings
    return dict(zip(PATTERNS, counters, strict=True))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_traffic_is_what_the_profiler_counted(
    pattern: str, recorded: dict[str, dict[str, float]], counted: dict[str, Counters]
) -> None:
    ours = {name: figure(counted[pattern]) for name, figure in FIGURES.items()}
    assert ours == recorded[pattern] | KNOWN_DIFFERENCES.get(pattern, {})
