"""A kernel seen from inside: where its threads stand, what their registers and their shared memory hold."""

from __future__ import annotations

from pathlib import Path
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


HEADER = """#pragma once
__device__ __forceinline__ int sum(int n, const int* p) {
  int s = 0;
  for (int j = 0; j < n; j++)
    s += p[j] * 3;
  return s;
}
"""
WITH_HEADER = """#include "sum.cuh"
extern "C" __global__ void k(int* o, const int* p, int n) {
  int i = threadIdx.x;
  int a = sum(n, p);
  o[i] = a + i;
}
"""


@pytest.fixture
def header_folder(tmp_path: Path) -> Path:
    (tmp_path / "sum.cuh").write_text(HEADER, encoding="utf-8")
    return tmp_path


def test_lines_of_a_header_have_its_name(header_folder: Path) -> None:
    o = np.zeros(32, np.int32)
    stepper = Stepper(WITH_HEADER, block=32, args=[o, np.ones(8, np.int32), 3], include_dirs=[header_folder])
    assert counts(stepper.run_to("sum.cuh:5")) == {"sum.cuh:5": 32}
    assert counts(stepper.run_to(5)) == {5: 32} and not o.any()  # not at line 5 of the header
    stepper.step()
    assert (o == 9 + np.arange(32)).all()
    with pytest.raises(ConfigError, match=r"Line 4 has no.*Lines that have: .*sum.cuh:4, sum.cuh:5"):
        Stepper(WITH_HEADER, args=[o, o, 1], include_dirs=[header_folder]).run_to(4)


def test_a_stepper_takes_the_switches_of_run() -> None:
    broken = SOURCE.replace("  __syncthreads();\n", "\n")
    stepper = Stepper(broken, grid=2, args=[np.zeros(128, np.float32), np.zeros(256, np.float32), 128], checks=False)
    stepper.finish()
    assert stepper.findings == []
    endless = 'extern "C" __global__ void k(int* x) { while (true) atomicAdd(x, 1); }'
    stepper = Stepper(endless, args=[np.zeros(1, np.int32)], max_steps=50)
    stepper.finish()
    assert [found.kind for found in stepper.findings] == ["endless"]
    rounded = 'extern "C" __global__ void k(float* x) { x[0] = fmaf(x[0], x[0], -x[1]); }'
    for exact in (True, False):
        x = np.array([1 + 2**-12, 1 + 2**-11], np.float32)
        Stepper(rounded, block=1, args=[x], exact_fma=exact).finish()
        assert x[0] == (2**-24 if exact else 0)
    with pytest.raises(ConfigError, match="shuffle_seed"):
        Stepper(rounded, block=1, args=[np.zeros(2, np.float32)], shuffle_seed="x")  # type: ignore[arg-type]
