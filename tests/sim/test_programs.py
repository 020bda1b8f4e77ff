"""Real programs on the simulator: NumPy's answer, the hardware's, and nothing that the checks object to."""

from __future__ import annotations

import numpy as np
import pytest
from sim.hardware import store
from sim.hardware.program_list import PROGRAMS
from sim.hardware.programs import Buffers, Program, close, record_checksum
from sim.hardware.simulate import simulate_program

# The kernels add in another order than NumPy does, and in float32 or float16.
FLOAT_TOLERANCE = {np.float16: 2e-3, np.float32: 1e-4, np.float64: 1e-9}


@pytest.fixture(scope="module")
def recording() -> store.Recording:
    return store.load(store.RECORDED / "programs.npz")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_gives_what_numpy_and_the_hardware_give(program: Program, recording: store.Recording) -> None:
    before = program.buffers()
    after, findings, _ = simulate_program(program)
    assert not findings, "\n".join(map(str, findings))
    _compare_with_numpy(program, before, after)
    check = record_checksum(program)
    for name in program.results:
        raw = recording.result(f"{program.name}/{name}", check)
        hardware = raw.view(before[name].dtype).reshape(before[name].shape)
        assert close(program, name, hardware, after[name]), f"{program.name}: {name} differs from the hardware's"


def _compare_with_numpy(program: Program, before: Buffers, after: Buffers) -> None:
    for name, expected in program.expected(before).items():
        got = after[name]
        if name in program.unordered:
            got, expected = np.sort(got, axis=None), np.sort(expected, axis=None)
        tolerance = FLOAT_TOLERANCE.get(got.dtype.type)
        if tolerance is None:
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
