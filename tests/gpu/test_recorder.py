"""The GPU at hand gives what was recorded for the simulator's tests, opcode by opcode."""

from __future__ import annotations

import pytest
from sim.hardware import store
from sim.hardware.compare import mismatches
from sim.hardware.corpus import FAMILIES, WRONG_ON_HARDWARE
from sim.hardware.operands import draw_inputs
from sim.hardware.record import record_cases


@pytest.fixture(scope="module")
def recording() -> store.Recording:
    return store.load(store.RECORDED / "opcodes.npz")


@pytest.mark.parametrize("family", FAMILIES)
def test_gpu_gives_what_was_recorded(family: str, recording: store.Recording) -> None:
    fresh = record_cases(family)
    wrong = []
    for case in FAMILIES[family]:
        if case.name in WRONG_ON_HARDWARE:
            continue
        check, result = fresh[case.name]
        wrong += mismatches(case, draw_inputs(case), recording.result(case.name, check), result)
    assert not wrong, "\n" + "\n".join(wrong)
