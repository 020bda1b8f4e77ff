"""`labkit tune` with a clock instead of a GPU: what is timed, what is kept, and what the layers then choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.tuning import HALF, INT4, some_table

from labkit.bench import graph_timing, tune
from labkit.bench.graph_timing import Call
from labkit.bench.results import Spread
from labkit.bench.tune_weights import random_weights, weight_bytes
from labkit.errors import ConfigError, ExecutorError
from labkit.ops.linear_candidates import CANDIDATES, KernelWeight
from labkit.ops.tuning import Place, choose, table_for
from labkit.ops.tuning_table import WeightShape, load_table, store_table, table_path
from labkit.quant.int8 import Int8Weight
from labkit.quant.pack import PackedInt4, unpack

DEVICE = "Imaginary GPU"
INT8 = WeightShape("int8", 64, 128, 64)
SMALL = WeightShape("int4", 64, 128, 64)
TINY_HALF = WeightShape("half", 40, 64, 0)


class Clock:
    """Stands for a GPU: every candidate takes the seconds that a test gives it; notes what was timed."""

    def __init__(self, seconds: Callable[[str, int], float]) -> None:
        self.seconds = seconds
        self.names = {id(run): name for kind in CANDIDATES.values() for name, run in kind.items()}
        self.graphs: list[tuple[str, int, int]] = []  # candidate, rows, calls

    def _of(self, call: Any) -> tuple[str, int]:
        return self.names[id(call.func)], call.args[0].shape[0]

    def once(self, call: Call) -> float:
        call()  # the candidate takes what it is given
        return self.seconds(*self._of(call))

    def graph(self, calls: Sequence[Call], estimate: float) -> Spread:
        name, rows = self._of(calls[0])
        self.graphs.append((name, rows, len(calls)))
        return Spread.of([self.seconds(name, rows)])


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The simulated GPU, on which awq_gemv wins up to 2 rows, and the library above."""
    clock = Clock(lambda name, rows: {"awq_gemv": 1e-5 * rows, "gemv_half": 1e-5 * rows}.get(name, 2.5e-5))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: DEVICE)
    monkeypatch.setattr(tune, "seconds_once", clock.once)
    monkeypatch.setattr(tune, "graph_seconds", clock.graph)
    monkeypatch.setattr(tune, "rotations", lambda nbytes, device: 3)
    monkeypatch.setattr(tune, "random_weights", lambda shape, count, device: random_weights(shape, count, "cpu"))
    table_for.cache_clear()
    yield clock
    table_for.cache_clear()


def test_a_tuned_device_follows_its_table(clock: Clock) -> None:
    place = Place(DEVICE, (7, 0))
    assert choose(SMALL, 5, place) == "awq_gemm/4_small_m"
    steps: list[tuple[int, int, str]] = []
    table = tune.tune([SMALL, TINY_HALF], (1, 2, 5), lambda *step: steps.append(step))
    assert load_table(DEVICE) == table
    assert [(done, total) for done, total, _ in steps] == [(n, 6) for n in range(6)]
    assert all("64x128 int4 g64" in text for _, _, text in steps[:3])
    assert [choose(SMALL, rows, place) for rows in (1, 2)] == ["awq_gemv"] * 2
    assert choose(SMALL, 5, place) == "dequant_matmul"  # in this process too
    assert choose(TINY_HALF, 5, place) == "matmul"
    assert table.device == DEVICE and table.torch == torch.__version__ and table.kernels and table.date


def test_every_candidate_is_timed_over_all_buffers(clock: Clock) -> None:
    table = tune.tune([SMALL, INT8, TINY_HALF], (8, 9))
    names = {(row.shape.kind, row.rows): set(row.seconds) for row in table.measured}
    for kind, candidates in CANDIDATES.items():
        assert names[kind, 8] == set(candidates)  # type: ignore[index]
        assert names[kind, 9] == {name for name in candidates if "gemv" not in name}  # type: ignore[index]
    assert {calls for _, _, calls in clock.graphs} == {3}


def test_a_hopeless_candidate_is_not_timed_to_the_end(clock: Clock) -> None:
    clock.seconds = lambda name, rows: 1.0 if name == "awq_gemm/4_small_m" else 1e-5
    [row] = tune.tune([SMALL], (64,)).measured
    assert set(row.seconds) == {"dequant_matmul", "awq_gemm/5_large_tile"}
    assert "awq_gemm/4_small_m" not in {name for name, _, _ in clock.graphs}


def test_a_second_run_keeps_the_other_shapes(clock: Clock) -> None:
    tune.tune([SMALL], (1,))
    tune.tune([TINY_HALF], (1,))
    table = load_table(DEVICE)
    assert table is not None and {row.shape for row in table.measured} == {SMALL, TINY_HALF}
    store_table(replace(table, driver="older"))
    tune.tune([TINY_HALF], (1,))
    table = load_table(DEVICE)
    assert table is not None and {row.shape for row in table.measured} == {TINY_HALF}  # an old driver's figures go


def test_a_damaged_table_is_replaced(clock: Clock) -> None:
    path = table_path(DEVICE)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    tune.tune([TINY_HALF], (1,))
    assert load_table(DEVICE)


def test_nothing_to_measure(clock: Clock) -> None:
    for shapes, rows in (([], (1,)), ([SMALL], ()), ([SMALL], (0,))):
        with pytest.raises(ConfigError, match="nothing to measure"):
            tune.tune(shapes, rows)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExecutorError, match="GPU") as caught:
        tune.tune([SMALL])
    assert "labkit doctor" in caught.value.cure


@pytest.mark.parametrize("shape", [SMALL, WeightShape("int4", 24, 96, 32), INT8, TINY_HALF], ids=str)
def test_random_weights_are_what_candidates_take(shape: WeightShape, seed: int) -> None:
    first, second = random_weights(shape, 2, "cpu")
    assert tuple(first.shape) == (shape.outputs, shape.inputs)
    if isinstance(first, PackedInt4):
        assert first.group_size == shape.group
        dense = unpack(first).dequantize()
        padding = -shape.outputs % 32 * shape.inputs * 5 // 8
        assert first.nbytes - padding <= weight_bytes(shape) <= first.nbytes
    else:
        assert first.nbytes == weight_bytes(shape)
        dense = first.dequantize() if isinstance(first, Int8Weight) else first.float()
    assert dense.isfinite().all() and 1e-3 < dense.std() < 1.0
    assert not torch.equal(numbers(first), numbers(second))


def numbers(weight: KernelWeight) -> torch.Tensor:
    """The tensor with the random part of a weight."""
    if isinstance(weight, PackedInt4):
        return weight.data
    return weight.q if isinstance(weight, Int8Weight) else weight


def test_buffers_exceed_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=6 << 20))
    for nbytes in (1, 1000, 6 << 20, 12 << 20, 13 << 20, 1 << 30):
        count = graph_timing.rotations(nbytes, torch.device("cuda"))
        assert count * nbytes > 12 << 20 >= (count - 1) * nbytes


def test_what_does_not_fit_the_memory_is_told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table that there was stays."""
    before = tune.tune([SMALL], [1])

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(tune, "random_weights", full)
    with pytest.raises(ConfigError, match=r"does not suffice for 40x64 fp16 with up to 8 rows") as caught:
        tune.tune([TINY_HALF], [1, 8])
    assert "smaller" in caught.value.cure and load_table(DEVICE) == before


def test_tables_of_tests_are_tables() -> None:
    assert {row.shape for row in some_table(DEVICE).measured} == {INT4, HALF}
