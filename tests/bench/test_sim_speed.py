"""`labkit bench sim`: its kernels compute what they should, without findings, and its report is complete."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.command_line import run_process

from labkit.bench.sim_speed import Case, cases
from labkit.sim.findings import Findings
from labkit.sim.machine import launch
from labkit.sim.options import Observers
from labkit.sim.races import Races


@pytest.mark.parametrize("number", range(3))
def test_the_kernels_are_right_and_sound(number: int, seed: int) -> None:
    case: Case = cases(np.random.default_rng(seed))[number]
    findings = Findings(case.kernel, case.grid, case.block)
    races = Races(findings, case.grid, case.block)
    launch(case.kernel, case.grid, case.block, case.arguments, observers=Observers(findings, races))
    assert findings.as_list() == []
    assert case.error() < 3e-3  # half's rounding; sums of halfs in the GEMV


def test_the_report() -> None:
    ended = run_process("bench", "sim", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert [row["kernel"] for row in document["rows"]] == [
        "RMSNorm 16 x 512",
        "mma GEMM 64 x 256 x 256",
        "INT4 GEMV 1024 x 512",
    ]
    for row in document["rows"]:
        assert row["checks_per_matmul"] == pytest.approx(row["checks_ms"] / document["matmul_ms"])
        assert 0 < row["plain_ms"] < 2000 and row["vector_instructions"] > 50
    assert document["origin"] == "measured" and document["device"]
