"""Every opcode case gives on the simulator what an H200 gave, as recorded in hardware/recorded/opcodes.npz."""

from __future__ import annotations

import pytest
from sim.hardware import store
from sim.hardware.case import Case, kernel_text
from sim.hardware.compare import join_regions, mismatches
from sim.hardware.corpus import CASES, WRONG_ON_HARDWARE
from sim.hardware.operands import draw_inputs
from sim.hardware.simulate import simulate_case


@pytest.fixture(scope="module")
def recording() -> store.Recording:
    return store.load(store.RECORDED / "opcodes.npz")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_case_gives_what_the_hardware_gave(case: Case, recording: store.Recording) -> None:
    inputs = draw_inputs(case)
    raw = join_regions(case, case.input_types, inputs)
    hardware = recording.result(case.name, store.checksum(kernel_text(case).encode(), raw.tobytes()))
    wrong = mismatches(case, inputs, hardware, simulate_case(case, inputs))
    if case.name in WRONG_ON_HARDWARE:
        assert wrong, "this record agrees: take the case from the list"
    else:
        assert not wrong, "\n" + "\n".join(wrong)


def test_recording_names_its_origin(recording: store.Recording) -> None:
    assert recording.origin["device"].startswith("NVIDIA")
    assert {"driver", "ptx", "date", "commit"} <= recording.origin.keys()
