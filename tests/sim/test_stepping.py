"""A kernel seen from inside: where its threads stand, what their registers and their shared memory hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.errors import ConfigError
from labkit.sim.stepping import Stepper

SOURCE = """extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = x[i];
  if (threadIdx.x < 20) {
    y[i] = v * 3.0f;
    v = -v;
    y[i + 128] = v;
  }
  s[threadIdx.x] = v;
  __syncthreads();
  y[i] = s[63 - threadIdx.x];
}
"""


@pytest.fixture
def stepper(seed: int) -> Any:
    x = np.random.default_rng(seed).uniform(-1, 1, 128).astype(np.float32)
    y = np.zeros(256, np.float32)
    stepper = Stepper(SOURCE, grid=2, block=64, args=[x, y, 128])
    stepper.x, stepper.y = x, y
    return stepper


def counts(places: dict[int, list[tuple[int, int]]]) -> dict[int, int]:
    return {line: len(threads) for line, threads in places.items()}


def test_all_threads_start_together(stepper: Any) -> None:
    assert counts(stepper.where()) == {1: 128}
    assert stepper.registers() == {} and not stepper.done


def test_run_to_stops_before_the_line(stepper: Any) -> None:
    assert counts(stepper.run_to(10)) == {10: 128}
    assert not stepper.shared(0).any()
    stepper.run_to(12)
    mine = np.where(np.arange(64) < 20, -stepper.x[64:], stepper.x[64:])
    assert (stepper.shared(1) == mine).all()


def test_threads_that_part_stand_on_different_lines(stepper: Any) -> None:
    places = stepper.run_to(6)
    assert set(places[6]) == {(block, thread) for block in range(2) for thread in range(20)}
    assert sum(counts(places).values()) == 128 and len(places) == 2


def test_registers_have_the_values_of_their_thread(stepper: Any) -> None:
    stepper.run_to(6)
    for thread in (3, 40):  # of the group that goes in, and of the one that waits
        registers = stepper.registers(1, thread)
        assert float(stepper.x[64 + thread]) in [value for value in registers.values() if isinstance(value, float)]
        assert 64 + thread in registers.values()
    warp = stepper.warp_registers(1, 0)
    loaded = [values for values in warp.values() if values.dtype == np.float32]
    assert any((values == stepper.x[64:96]).all() for values in loaded)
    assert any((values == np.arange(64, 96)).all() for values in warp.values())


def test_steps_lead_to_the_end_and_to_the_same_result(stepper: Any) -> None:
    seen = set()
    while not stepper.done:
        seen |= set(stepper.step())
    assert {6, 8, 10, 11, 12} <= seen
    assert stepper.where() == {} and stepper.findings == []
    mine = np.where(np.arange(128) % 64 < 20, -stepper.x, stepper.x).reshape(2, 64)
    assert (stepper.y[:128] == mine[:, ::-1].reshape(-1)).all()


def test_the_listing_marks_where_threads_stand(stepper: Any) -> None:
    stepper.run_to(11)
    rows = stepper.listing().splitlines()
    assert rows[0].startswith("    1 | extern") and "ld.param.u64" in rows[0]
    [marked] = [row for row in rows if row.startswith(">")]
    assert "__syncthreads();" in marked and "> bar.sync 0    [128 threads]" in marked


def test_instructions_run_one_by_one(stepper: Any) -> None:
    before = stepper.registers()
    stepper.step_instruction()
    assert len(stepper.registers()) == len(before) + 1


def test_a_race_is_found_while_stepping() -> None:
    broken = SOURCE.replace("  __syncthreads();\n", "\n")
    stepper = Stepper(broken, grid=2, block=64, args=[np.zeros(128, np.float32), np.zeros(256, np.float32), 128])
    stepper.finish()
    assert {found.kind for found in stepper.findings} == {"shared-race"}


def test_what_is_not_there_is_refused(stepper: Any) -> None:
    with pytest.raises(ConfigError, match=r"Line 2 has no instructions.*Lines that have: "):
        stepper.run_to(2)
    for block, thread in ((2, 0), (0, 64), (-1, 0)):
        with pytest.raises(ConfigError, match="There is no thread"):
            stepper.registers(block, thread)
