"""Real programs under the race checks: right ones pass without a word, broken twins are told what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.sim.api import run
from labkit.sim.findings import Finding, Findings
from labkit.sim.global_races import RaceGroup
from labkit.sim.machine import Launch, launch_together
from labkit.sim.options import Observers
from labkit.sim.races import Races
from labkit.sim.source import load_program

PROGRAMS = Path(__file__).parent / "programs"
SYNC = "__syncthreads()"


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / program).read_text(encoding="utf-8").splitlines()
    [line] = [number for number, content in enumerate(lines, 1) if text in content]
    return line


def kinds(findings: Sequence[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


def reduce_fence(seed: int, fence: str = "__threadfence()", barrier: str = SYNC) -> tuple[Any, float]:
    x = np.random.default_rng(seed).integers(-50, 50, 1000).astype(np.float32)
    partial, finished, total = np.zeros(6, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    macros = {"FENCE": fence, "BARRIER": barrier}
    args = [x, partial, finished, total, len(x)]
    result = run(PROGRAMS / "reduce_fence.cu", grid=6, block=128, args=args, macros=macros)
    return result, float(total[0] - x.sum())


def test_the_last_block_pattern(seed: int) -> None:
    result, error = reduce_fence(seed)
    assert result.ok and error == 0, result


def test_the_last_block_pattern_without_its_fence(seed: int) -> None:
    result, _ = reduce_fence(seed, fence="")
    [found] = result.findings
    assert (found.kind, found.line) == ("missing-fence", line_of("reduce_fence.cu", "all += partial[i]"))
    assert found.other and found.other.line == line_of("reduce_fence.cu", "partial[blockIdx.x] =")
    assert "__threadfence()" in found.text


def all_reduce(seed: int, **macros: str) -> tuple[list[Finding], float]:
    rng = np.random.default_rng(seed)
    n, blocks = 700, 3
    vectors = [rng.integers(-9, 9, n).astype(np.float32) for _ in range(2)]
    stages, flags = [np.zeros(n, np.float32) for _ in range(2)], [np.zeros(blocks, np.uint32) for _ in range(2)]
    results = [np.zeros(n, np.float32) for _ in range(2)]
    chosen = {"FENCE": "__threadfence_system()", "BARRIER_BEFORE_FLAG": SYNC, "BARRIER_AFTER_WAIT": SYNC} | macros
    kernel = load_program(PROGRAMS / "all_reduce.cu", macros=chosen).kernel
    group, launches, all_findings = RaceGroup(), [], []
    for me in range(2):
        findings = Findings(kernel, (blocks, 1, 1), (64, 1, 1))
        races = Races(findings, (blocks, 1, 1), (64, 1, 1), device=me, group=group)
        args = [vectors[me], results[me], stages[me], stages[1 - me], flags[me], flags[1 - me], n]
        launches.append(Launch(kernel, blocks, 64, args, device=me, observers=Observers(findings, races)))
        all_findings.append(findings)
    launch_together(launches)
    error = max(float(np.abs(result - sum(vectors)).max()) for result in results)
    return [each for findings in all_findings for each in findings.as_list()], error


def test_a_one_shot_all_reduce_of_two_devices(seed: int) -> None:
    findings, error = all_reduce(seed)
    assert findings == [] and error == 0


@pytest.mark.parametrize("fence", ["", "__threadfence_block()", "__threadfence()"])
def test_the_all_reduce_needs_a_fence_of_the_system(fence: str, seed: int) -> None:
    findings, _ = all_reduce(seed, FENCE=fence)
    assert kinds(findings) == {"missing-fence"}
    assert {found.line for found in findings} == {line_of("all_reduce.cu", "result[i] = ")}
    assert "__threadfence_system()" in findings[0].text


@pytest.mark.parametrize("barrier", ["BARRIER_BEFORE_FLAG", "BARRIER_AFTER_WAIT"])
def test_the_all_reduce_needs_both_barriers(barrier: str, seed: int) -> None:
    findings, _ = all_reduce(seed, **{barrier: ""})
    assert "global-race" in kinds(findings)


@pytest.mark.parametrize("barrier", [SYNC, ""])
def test_a_double_buffered_product(barrier: str, seed: int) -> None:
    a, b = np.random.default_rng(seed).integers(-4, 4, (2, 64, 64)).astype(np.float32)
    c = np.zeros((64, 64), np.float32)
    result = run(
        PROGRAMS / "tiled_product.cu", grid=(4, 4), block=(16, 16), args=[a, b, c, 64], macros={"BARRIER": barrier}
    )
    if barrier:
        assert result.ok and (c == a @ b).all(), result
    else:
        assert kinds(result.findings) == {"shared-race"}
        stores = line_of("tiled_product.cu", "left[next]"), line_of("tiled_product.cu", "right[next]")
        assert {found.line for found in result.findings} | {f.other.line for f in result.findings if f.other} >= set(
            stores
        )


@pytest.mark.parametrize("qualifier", ["", "volatile"])
@pytest.mark.parametrize("sync", ["__syncwarp()", ""])
def test_a_tree_within_a_warp(sync: str, qualifier: str, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-50, 50, 768).astype(np.float32)
    sums = np.zeros(12, np.float32)
    macros = {"SYNC": sync, "QUALIFIER": qualifier}
    result = run(PROGRAMS / "warp_tree.cu", grid=3, block=128, args=[x, sums], macros=macros)
    if sync:
        assert result.ok and (sums == x.reshape(12, 64).sum(axis=1)).all(), result
    else:
        assert kinds(result.findings) == {"shared-race"} and "__syncwarp()" in result.findings[0].text


RIGHT = {"BARRIER_AFTER_CLEAR": SYNC, "BARRIER_AFTER_COUNT": SYNC, "COUNT": "atomicAdd(mine + x[i], 1)"}


@pytest.mark.parametrize(
    "change", [{}, {"BARRIER_AFTER_CLEAR": ""}, {"BARRIER_AFTER_COUNT": ""}, {"COUNT": "mine[x[i]]++"}]
)
def test_a_histogram_in_shared_memory(change: dict[str, str], seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 20, 3000).astype(np.uint8)
    counts = np.zeros(256, np.int32)
    result = run(PROGRAMS / "histogram.cu", grid=3, block=256, args=[x, counts, len(x)], macros=RIGHT | change)
    if change:
        assert kinds(result.findings) == {"shared-race"}
    else:
        assert result.ok and (counts == np.bincount(x, minlength=256)).all(), result


@pytest.mark.parametrize("waits", [True, False])
def test_warps_that_meet_at_barriers_of_their_own(waits: bool, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 999, (5, 64)).astype(np.int32)
    y = np.zeros_like(x)
    wait = '"bar.sync 1, 128;"' if waits else '""'
    result = run(PROGRAMS / "named_barriers.cu", block=128, args=[x, y, 5], macros={"WAIT": wait})
    if waits:
        assert result.ok and (y == x[:, ::-1]).all(), result
    else:
        assert "shared-race" in kinds(result.findings)
