"""Linear layers and their tuning on a GPU: results against fp64, inside a graph too, and a table that is followed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.linears import random_int4, random_int8

from labkit.bench import tune
from labkit.bench.graph_timing import graph_seconds, seconds_once
from labkit.ops.linear import Workspace, make_linear
from labkit.ops.linear_candidates import CANDIDATES
from labkit.ops.linear_kernels import KernelLinear
from labkit.ops.tuning import place_of, table_for
from labkit.ops.tuning_table import WeightShape, load_table
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight

Weight = Int4Weight | Int8Weight | torch.Tensor
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Defaults, whatever this user's table says."""
    monkeypatch.setattr("labkit.ops.tuning.load_table", lambda _: None)
    table_for.cache_clear()
    yield
    table_for.cache_clear()


def weights() -> dict[str, Weight]:
    return {
        "int4": random_int4(1000, 2560, 128, "scale_zero"),
        "int4 bias": random_int4(576, 1536, 32, "scale_bias"),
        "int8": random_int8(1000, 2560, 128),
        "half": (torch.randn(1000, 2560) * 0.05).half(),
    }


def exact(weight: Weight) -> torch.Tensor:
    return (weight if isinstance(weight, torch.Tensor) else weight.dequantize()).double().to(DEVICE)


@pytest.mark.parametrize("name", ["int4", "int4 bias", "int8", "half"])
def test_every_candidate_on_the_gpu(name: str, no_table: None, seed: int) -> None:
    weight = weights()[name]
    layer, dense = make_linear(weight.to(DEVICE), torch.float16, Workspace()), exact(weight)
    assert isinstance(layer, KernelLinear)
    for count in (1, 3, 4, 8, 16, 33, 129, 1024):
        x = torch.randn(count, dense.shape[1], device=DEVICE).half()
        residual = torch.randn(count, dense.shape[0], device=DEVICE).half()
        relative_error(layer.plus(x, residual), residual.double() + x.double() @ dense.T, QUANTIZED)
        for candidate, run in CANDIDATES[layer.shape.kind].items():
            if count <= 8 or "gemv" not in candidate:
                relative_error(run(x, layer.weight, Workspace().half, None), x.double() @ dense.T, QUANTIZED)


def test_large_activations_do_not_overflow_in_split_sums(no_table: None, seed: int) -> None:
    """Terms of 3e4 that cancel: sums in fp16 would be infinite on the way."""
    weight = (torch.randn(64, 4096) * 0.005).half()
    layer = make_linear(weight.to(DEVICE), torch.float16, Workspace())
    for count in (1, 9, 64):
        x = (3e4 * torch.randn(count, 1, device=DEVICE).sign()).half().expand(count, 4096)
        relative_error(layer(x), x.double() @ exact(weight).T, QUANTIZED)


@pytest.mark.parametrize("name", ["int4", "int8", "half"])
@pytest.mark.parametrize("count", [1, 200])
def test_a_layer_in_a_graph(name: str, count: int, no_table: None, seed: int) -> None:
    weight = weights()[name]
    layer, dense = make_linear(weight.to(DEVICE), torch.float16, Workspace()), exact(weight)
    x = torch.randn(count, dense.shape[1], device=DEVICE).half()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        layer(x)
    with torch.cuda.graph(graph, stream=stream):
        y = layer(x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        relative_error(y, x.double() @ dense.T, QUANTIZED)


def test_a_graph_takes_as_long_as_its_calls() -> None:
    """Copies of 64 MiB: between the fastest memory there is and a slow one."""
    x, y = (torch.empty(1 << 26, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    calls = [lambda: y.copy_(x), lambda: x.copy_(y)]
    spread = graph_seconds(calls, seconds_once(calls[0]))
    rate = 2 * x.nbytes / spread.median
    assert 5e10 < rate < 2e13 and spread.low <= spread.median <= spread.high


def test_tuning_on_this_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    table_for.cache_clear()
    small = [WeightShape("int8", 24, 5120, 128), WeightShape("half", 48, 5120, 0)]
    shapes = [WeightShape("int4", 4096, 5120, 128), *small]
    table = tune.tune(shapes, (1, 8, 64))
    assert table.device == place_of(DEVICE).name and load_table(table.device) == table
    for row in table.measured:
        assert row.seconds and all(5e-7 < seconds < 0.1 for seconds in row.seconds.values())
    layer = make_linear(random_int4(4096, 5120, 128, "scale_zero").to(DEVICE), torch.float16, Workspace())
    assert isinstance(layer, KernelLinear)
    best = {row.rows: row.best for row in table.measured if row.shape == layer.shape}
    assert {rows: layer.choice(rows) for rows in (1, 8, 64)} == best
    table_for.cache_clear()
