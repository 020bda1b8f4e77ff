"""Whole launches: what they refuse, what they report, how they end, and several of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.errors import KernelArgumentError, KernelLaunchError
from labkit.sim import Out, Result, run
from labkit.sim.findings import Findings
from labkit.sim.launched import VAIN_ROUNDS
from labkit.sim.machine import Launch, device, launch, launch_together
from labkit.sim.memory import Memory
from labkit.sim.options import Observers, Options
from labkit.sim.source import load_program

SOURCE = (Path(__file__).parent / "cuda" / "machine.cu").read_text()


def sim(name: str, grid: int, block: int, *args: Any, **options: Any) -> Result:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args), **options)


def kinds(result: Result) -> list[str]:
    return [finding.kind for finding in result.findings]


def line_of(text: str) -> int:
    """Line of the source that holds ``text``."""
    return next(number for number, line in enumerate(SOURCE.split("\n"), start=1) if text in line)


# Arguments


def test_arguments_of_every_kind() -> None:
    o = np.zeros(10)
    pair = np.zeros(1, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
    pair["a"], pair["b"] = -5, 0.25
    assert sim("all_kinds", 1, 1, -3, -300, -70000, -(2**40), 2**32 - 1, 0.5, 0.1, True, pair.tobytes(), o).ok
    assert o.tolist() == [-3, -300, -70000, -(2**40), 2**32 - 1, 0.5, 0.1, 1, -5, 0.25]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((np.zeros(4, np.float32), np.zeros(4, np.float32)), "3 arguments|2 were given"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 1.5), "integer"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), 2**32), "fit|range"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(3)), "pointer|number"),
        ((np.zeros(4, np.float32), "text", 4), "str"),
    ],
)
def test_wrong_arguments_are_refused(args: tuple[Any, ...], problem: str) -> None:
    kernel = load_program(SOURCE, "copy").kernel
    with pytest.raises(KernelArgumentError, match=problem):
        launch(kernel, 1, 32, args)
    with pytest.raises(KernelArgumentError):
        sim("copy", 1, 32, *args)


@pytest.mark.parametrize(
    ("grid", "block"), [(0, 32), (1, 0), (1, 2048), (1, (32, 64)), (1, (1, 1, 65)), ((1, 65536), 1)]
)
def test_shapes_beyond_a_v100_are_refused(grid: Any, block: Any) -> None:
    kernel = load_program(SOURCE, "copy").kernel
    with pytest.raises(KernelLaunchError):
        launch(kernel, grid, block, [np.zeros(1, np.float32), np.zeros(1, np.float32), 1])


def test_limits_of_a_kernel_are_kept() -> None:
    with pytest.raises(KernelLaunchError, match="64"):
        launch(load_program(SOURCE, "bounded").kernel, 1, 65, [])
    with pytest.raises(KernelLaunchError, match="98,304"):
        launch(load_program(SOURCE, "dynamic").kernel, 1, 32, [np.zeros(32, np.int32)], 100_000)


def test_tensors_are_used_in_place(seed: int) -> None:
    a = torch.randn(100)
    o = torch.zeros(200)
    assert sim("copy", 4, 32, a, o[50:150], 100).ok
    assert torch.equal(o[50:150], a) and not o[:50].any() and not o[150:].any()


def test_views_of_one_storage_become_one_buffer(seed: int) -> None:
    memory = Memory()
    a = torch.randn(64)
    memory.add(a[:8], "a")
    memory.add(a[16:40], "b")
    memory.add(Out(a[32:64]), "c")
    assert [(buffer.name, buffer.size) for buffer in memory.buffers] == [("a", 32), ("b", 192)]
    merged = memory.buffers[1]
    assert merged.unwritten(merged.base, merged.size).tolist() == list(range(64, 192))


def test_pointers_in_memory_lead_to_reachable_tensors(seed: int) -> None:
    a, b, o = torch.randn(32), torch.randn(32), torch.zeros(32)
    table = torch.tensor([a.data_ptr(), b.data_ptr()])
    kernel = load_program(SOURCE, "pointers").kernel
    launch(kernel, 1, 32, [table, o], reachable=[a, b])
    assert torch.equal(o[::2], a[::2]) and torch.equal(o[1::2], b[1::2])


# Faults


@pytest.mark.parametrize("block", [32, 20])
@pytest.mark.parametrize(("by", "count"), [(1, 1), (-2, 2), (1 << 28, 32), (-(1 << 28), 32)])
def test_global_accesses_out_of_bounds(seed: int, block: int, by: int, count: int) -> None:
    a, o = np.arange(1.0, block + 1, dtype=np.float32), np.full(block, -1, np.float32)
    loaded = sim("shift", 1, block, a, o, by)
    assert kinds(loaded) == ["out-of-bounds"]
    assert loaded.findings[0].count == min(count, block) and loaded.findings[0].line == line_of("void shift(")
    assert o.tolist() == [i + by + 1 if 0 <= i + by < block else 0 for i in range(block)]
    stored = sim("shift_store", 1, block, o, by)
    assert kinds(stored) == ["out-of-bounds"] and stored.findings[0].count == min(count, block)
    assert "behind the end" in stored.findings[0].text or "before the start" in stored.findings[0].text


def test_a_pointer_that_runs_into_another_tensor_is_out_of_bounds() -> None:
    both = np.arange(64, dtype=np.float32)
    first, second = torch.from_numpy(both[:32].copy()), torch.from_numpy(both[32:].copy())
    distance = (second.data_ptr() - first.data_ptr()) // 4
    o = np.full(32, -1, np.float32)
    kernel = load_program(SOURCE, "shift").kernel
    findings = Findings(kernel, (1, 1, 1), (32, 1, 1))
    launch(kernel, 1, 32, [first, o, distance], observers=Observers(findings), reachable=[second])
    assert [(each.kind, each.count) for each in findings.as_list()] == [("out-of-bounds", 32)]
    assert "argument 0" in findings.as_list()[0].text and not o.any()


def test_pointers_into_one_tensor_can_be_subtracted() -> None:
    a, o = torch.zeros(100), np.zeros(1, np.int64)
    assert sim("difference", 1, 1, a[10:], a[60:61], o).ok
    assert o[0] == 50


def test_misaligned_accesses() -> None:
    a, o = np.arange(64, dtype=np.uint8), np.full(32, -1, np.int32)
    loaded = sim("skewed", 1, 32, a, o)
    assert kinds(loaded) == ["misaligned"] and loaded.findings[0].count == 24
    assert o[4] == int.from_bytes(bytes([4, 5, 6, 7]), "little") and o[5] == 0
    b = np.zeros(128, np.uint8)
    stored = sim("skewed_store", 1, 32, b)
    assert kinds(stored) == ["misaligned"] and stored.findings[0].count == 16
    assert b.sum() == 16 and b[6] == 1 and b[3] == 0


@pytest.mark.parametrize(("by", "count"), [(1, 1), (-3, 3), (1000, 32)])
def test_shared_accesses_out_of_bounds(by: int, count: int) -> None:
    result = sim("shared_fault", 2, 32, np.zeros(64, np.int32), by)
    assert kinds(result) == ["out-of-bounds"] and result.findings[0].count == 2 * count


@pytest.mark.parametrize(("grid", "block"), [(1, 64), (3, 64), (2, 50)])
def test_uninitialized_shared_memory(grid: int, block: int) -> None:
    result = sim("half_written", grid, block, np.zeros(64 * grid, np.int32))
    assert kinds(result) == ["uninitialized"]
    assert result.findings[0].count == grid * block // 2 and result.findings[0].thread == 0
    assert sim("half_written", grid, block, np.zeros(64 * grid, np.int32), checks=False).findings == []


def test_outputs_start_uninitialized_and_must_be_written() -> None:
    reading = sim("reads_output", 1, 32, Out(np.zeros(32, np.int32)))
    assert kinds(reading) == ["uninitialized"] and reading.findings[0].count == 32
    half = sim("odd_only", 1, 32, Out(torch.zeros(32, dtype=torch.int16)))
    assert kinds(half) == ["unwritten-output"] and "32 of 64 bytes" in half.findings[0].text
    assert sim("copy", 1, 32, np.zeros(32, np.float32), Out(np.zeros(32, np.float32)), 32).ok


def test_barriers_at_two_places() -> None:
    result = sim("two_barriers", 1, 32, np.zeros(32, np.int32))
    assert kinds(result) == ["barrier-divergence"]
    finding = result.findings[0]
    assert finding.line == finding.other.line == line_of("{ o[threadIdx.x] = 1; __syncthreads(); } else")


def test_threads_that_go_around_a_barrier_are_reported_and_early_returns_are_not() -> None:
    o = np.zeros(128, np.int32)
    assert kinds(sim("around_barrier", 1, 64, o)) == ["barrier-divergence"]
    assert o.tolist() == [2] * 40 + [0] * 24 + [2] * 64
    o = np.zeros(64, np.int32)
    assert sim("early_return", 1, 64, o).ok
    assert o.tolist() == [2] * 40 + [0] * 24


def test_deadlock() -> None:
    result = sim("stuck", 2, 64)
    assert kinds(result) == ["deadlock"] and not result.finished and not result.ok
    assert result.findings[0].count == 128 and result.findings[0].line == line_of("void stuck")


def test_missing_lanes() -> None:
    o = np.zeros(32, np.int32)
    result = sim("half_shuffle", 1, 32, o)
    (missing,) = [finding for finding in result.findings if finding.kind == "missing-lanes"]
    assert "lanes 16-31" in missing.text and missing.line == line_of("void half_shuffle") + 1 and result.finished
    assert o[:16].tolist() == [i ^ 1 for i in range(16)]
    outside = sim("not_in_mask", 1, 32, o)
    assert kinds(outside) == ["missing-lanes"] and outside.findings[0].count == 16
    ended = sim("ended_lanes", 1, 24, np.zeros(24, np.int32))
    assert kinds(ended) == ["missing-lanes"] and ended.findings[0].count == 8


@pytest.mark.parametrize("block", [32, 20])
def test_endless_loops_are_stopped(block: int) -> None:
    result = sim("endless", 1, block, np.zeros(2, np.int32), max_steps=500)
    assert kinds(result) == ["endless"] and not result.finished
    assert result.findings[0].line == line_of("void endless")


def test_waiting_in_vain_is_found_early() -> None:
    result = sim("endless", 1, 32, np.zeros(2, np.int32))
    assert kinds(result) == ["endless"] and "nobody writes" in result.findings[0].text
    assert result.instructions < 500_000


def test_volatile_reads_that_move_on_are_no_waiting() -> None:
    n = VAIN_ROUNDS + 1000
    a, o = np.arange(n, dtype=np.int32), np.zeros(1, np.int32)
    assert sim("volatile_sum", 1, 32, a, o, n, checks=False, counters=False).ok
    assert o[0] == n * (n - 1) // 2


def test_trap_ends_the_launch() -> None:
    o = np.zeros(32, np.int32)
    result = sim("traps", 1, 32, o)
    assert kinds(result) == ["trap"] and result.findings[0].thread == 5 and not result.finished
    assert (o >= 1).all()


def test_without_findings_the_first_fault_is_an_error() -> None:
    kernel = load_program(SOURCE, "shift").kernel
    with pytest.raises(KernelLaunchError, match=f"line {line_of('void shift(')}.*behind the end"):
        launch(kernel, 1, 32, [np.zeros(32, np.float32), np.zeros(32, np.float32), 1])


def test_grids_beyond_memory_are_refused() -> None:
    with pytest.raises(KernelLaunchError, match="too large"):
        launch(load_program(SOURCE, "copy").kernel, 2**31 - 1, 32, [np.zeros(1, np.float32)] * 2 + [1])


def test_printf_in_the_order_of_threads() -> None:
    result = sim("prints", 1, 32, np.array([1.5, -2.25, 3], np.float32), 3)
    assert result.ok, result
    lines = [f"{i - 1} {x:5.2f}|7   |x text 10000000000 100%" for i, x in enumerate((1.5, -2.25, 3))]
    assert result.output.splitlines() == [*lines, "plain"]


def test_failed_assertions_end_the_launch() -> None:
    result = sim("asserts", 1, 32, np.arange(32, dtype=np.int32) // 4)
    assert kinds(result) == ["assert"] and not result.finished
    assert result.findings[0].thread == 12 and "a[threadIdx.x] < 3" in result.findings[0].text


# State


def test_module_variables_stay_on_their_device() -> None:
    kernel = load_program(SOURCE, "globals").kernel
    first, second = device(5), device(6)
    first.reset(), second.reset()
    o, old = np.zeros(8, np.float32), np.zeros(2, np.int32)
    seen = []
    for home in (first, first, second):
        launch(kernel, 1, 8, [o, old], device=home)
        seen.append(old.tolist())
    assert seen == [[0, 8], [1, 80], [0, 8]]
    assert o.tolist() == [1, 2, 3, 4] * 2
    first.variable(kernel.module, "table", np.float32)[2] = 30
    launch(kernel, 1, 8, [o, old], device=first)
    assert o.tolist() == [1, 2, 30, 4] * 2
    assert first.variable(kernel.module, "calls", np.int32).tolist() == [3]


def test_dynamic_shared_memory() -> None:
    o = np.zeros(64, np.int32)
    assert sim("dynamic", 1, 64, o, shared_bytes=256).ok
    assert o.tolist() == list(range(63, -1, -1))
    assert "out-of-bounds" in kinds(sim("dynamic", 1, 64, o, shared_bytes=252))


# Several devices


def test_devices_exchange_data(seed: int) -> None:
    kernel = load_program(SOURCE, "exchange").kernel
    n = 1000
    mine = [torch.randn(n) for _ in range(2)]
    slots = [torch.zeros(n) for _ in range(2)]
    flags = [torch.zeros(1, dtype=torch.int32) for _ in range(2)]
    outputs = [torch.zeros(n) for _ in range(2)]
    launches, findings = [], []
    for rank in range(2):
        peer = 1 - rank
        args = [mine[rank], slots[peer], flags[peer], slots[rank], flags[rank], Out(outputs[rank]), n]
        findings.append(Findings(kernel, (1, 1, 1), (96, 1, 1)))
        watching = Observers(findings[-1])
        launches.append(Launch(kernel, 1, 96, args, device=rank, observers=watching))
    results = launch_together(launches)
    assert all(result.finished for result in results)
    assert [each.as_list() for each in findings] == [[], []]
    assert torch.equal(outputs[0], mine[0] + mine[1]) and torch.equal(outputs[0], outputs[1])


def test_a_device_that_waits_for_nobody_is_endless() -> None:
    kernel = load_program(SOURCE, "endless").kernel
    findings = Findings(kernel)
    options = Options(max_steps=300)
    observed = Launch(kernel, 1, 32, [np.zeros(2, np.int32)], options=options, observers=Observers(findings))
    (result,) = launch_together([observed])
    assert not result.finished and [each.kind for each in findings.as_list()] == ["endless"]
