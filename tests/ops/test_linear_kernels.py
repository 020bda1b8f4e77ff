"""Linear layers on the simulator: every candidate against fp64, the choice among them, fusions, what stays in torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.accuracy import QUANTIZED, relative_error
from helpers.linears import random_int4, random_int8
from torch import Tensor

from labkit.bench.matrices import model_shapes
from labkit.device import Kernel, use_executor
from labkit.errors import ExecutorError, KernelArgumentError
from labkit.ops import linear_candidates
from labkit.ops.ladders import LADDERS
from labkit.ops.linear import FusedLinear, Workspace, make_linear
from labkit.ops.linear_candidates import PRODUCTS, builds
from labkit.ops.linear_kernels import KernelLinear, needed_builds
from labkit.ops.linear_torch import DenseLinear, DequantizedLinear
from labkit.ops.tuning import NEWER_RULES, SIMULATED, V100_RULES, Place
from labkit.ops.tuning_table import WeightShape
from labkit.quant.int4 import Int4Weight
from labkit.quant.int8 import Int8Weight

HALF = torch.float16
ROWS = {"int4": (1, 4, 17, 129), "int8": (1, 8, 9), "half": (1, 8, 9)}
Weight = Int4Weight | Int8Weight | Tensor


@pytest.fixture
def sim() -> Iterator[None]:
    with use_executor("sim"):
        yield


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that the test launches."""
    kernels: list[Kernel] = []
    launch = Kernel.launch

    def noting(self: Kernel, *arguments: Any) -> None:
        kernels.append(self)
        launch(self, *arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    return kernels


def dense(weight: Weight) -> Tensor:
    """In fp64."""
    return (weight if isinstance(weight, Tensor) else weight.dequantize()).double()


def kernel_linear(weight: Weight) -> KernelLinear:
    layer = make_linear(weight, HALF, Workspace())
    assert isinstance(layer, KernelLinear) and isinstance(layer, FusedLinear)
    return layer


def some_rows(count: int, size: int) -> Tensor:
    return torch.randn(count, size).half()


WEIGHTS: dict[str, Callable[[], Weight]] = {
    "int4 g32 bias": lambda: random_int4(96, 96, 32, "scale_bias"),
    "int4 g64": lambda: random_int4(24, 128, 64, "scale_zero"),
    "int4 g128": lambda: random_int4(65, 256, 128, "scale_zero"),
    "int8": lambda: random_int8(40, 96, 32),
    "half": lambda: (torch.randn(40, 72) * 0.1).half(),
    "half, odd": lambda: (torch.randn(7, 33) * 0.1).half(),
}


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_layers_compute_with_their_weights(make: Callable[[], Weight], sim: None, seed: int) -> None:
    weight = make()
    layer = kernel_linear(weight)
    for count in ROWS[layer.shape.kind]:
        x, residual = some_rows(count, weight.shape[1]), some_rows(count, weight.shape[0])
        exact = x.double() @ dense(weight).T
        relative_error(layer.plus(x, residual), residual.double() + exact, QUANTIZED)
    relative_error(layer(x[:2]), exact[:2], QUANTIZED)


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_every_candidate_computes_the_same(make: Callable[[], Weight], sim: None, seed: int) -> None:
    """On any device: also those that the simulator's rules do not choose."""
    weight = make()
    layer = kernel_linear(weight)
    x, residual = some_rows(6, weight.shape[1]), some_rows(6, weight.shape[0])
    for name, run in linear_candidates.CANDIDATES[layer.shape.kind].items():
        y = run(x, layer.weight, Workspace().half, residual)
        assert y.dtype == HALF, name
        relative_error(y, residual.double() + x.double() @ dense(weight).T, QUANTIZED)


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_no_rows_are_no_rows(make: Callable[[], Weight], sim: None, launched: list[Kernel]) -> None:
    weight = make()
    layer, x, nothing = kernel_linear(weight), some_rows(0, weight.shape[1]), some_rows(0, weight.shape[0])
    for y in (layer(x), layer.plus(x, nothing)):
        assert y.shape == nothing.shape and y.dtype == HALF
    if weight.shape[0] % 2 == 0:
        assert layer.silu_mul(x).shape == (0, weight.shape[0] // 2)
    assert not [kernel for kernel in launched if kernel.op in PRODUCTS]


@pytest.mark.parametrize("count", [1, 4, 17, 129])
@pytest.mark.parametrize("executor", ["sim", "torch"])
def test_residuals_belong_to_the_rows(count: int, executor: str, sim: None, seed: int) -> None:
    """On every candidate: torch would spread one row over all, and answer in fp32 to fp32."""
    layer, x = kernel_linear(random_int4(32, 64, 32, "scale_zero")), some_rows(count, 64)
    with use_executor(executor), pytest.raises(KernelArgumentError, match="residual"):
        layer.plus(x, some_rows(1 if count > 1 else 2, 32))
    with use_executor(executor):
        relative_error(layer.plus(x, some_rows(count, 32) * 0), layer(x).double(), 1e-3)


@pytest.mark.parametrize(("outputs", "fused"), [(128, True), (96, False)])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_gate_and_up_in_one(
    outputs: int, fused: bool, count: int, sim: None, launched: list[Kernel], seed: int
) -> None:
    """In one kernel where halves are whole tiles and the rows are few; else in two, with the same result."""
    weight = random_int4(outputs, 64, 32, "scale_zero")
    layer, x = kernel_linear(weight), some_rows(count, 64)
    y = layer.silu_mul(x)
    gate, up = (x.double() @ dense(weight).T).chunk(2, dim=-1)
    relative_error(y, gate * gate.sigmoid() * up, QUANTIZED)
    alone = fused and count <= 3
    assert [kernel.op for kernel in launched][1:] == ([] if alone else ["silu_mul"])


def test_the_rules_choose_what_is_launched(sim: None, launched: list[Kernel], seed: int) -> None:
    layer = kernel_linear(random_int4(64, 64, 32, "scale_zero"))
    expected = {1: "awq_gemv", 3: "awq_gemv", 4: "4_small_m", 16: "4_small_m", 17: "5_large_tile", 128: "dequant_int4"}
    for rows, name in expected.items():
        launched.clear()
        layer(some_rows(rows, 64))
        [kernel] = launched
        assert name in (kernel.op, kernel.rung)
    assert layer.kernel == (
        "awq_gemv up to 3 rows, awq_gemm/4_small_m up to 16 rows, awq_gemm/5_large_tile up to 127 rows, "
        "dequant_matmul above"
    )


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_what_is_launched_was_said_before(
    make: Callable[[], Weight], sim: None, launched: list[Kernel], seed: int
) -> None:
    weight = make()
    layer = kernel_linear(weight)
    for count in (1, 2, 3, 4, 8, 9, 17, 128):
        layer(some_rows(count, weight.shape[1]))
    said = {(build.op, build.rung, str(sorted(build.macros.items()))) for build in layer.builds}
    assert {(kernel.op, kernel.rung, str(sorted(kernel.macros.items()))) for kernel in launched} == said


def test_only_the_packed_weight_stays(sim: None, seed: int) -> None:
    weight = random_int4(64, 128, 64, "scale_zero")
    gone = [weakref.ref(weight), weakref.ref(weight.packed), weakref.ref(weight.groups)]
    nbytes = weight.nbytes
    layer = kernel_linear(weight)
    del weight
    gc.collect()
    assert not [reference for reference in gone if reference() is not None]
    assert layer.nbytes == layer.bytes_read(1) == nbytes


def test_a_dense_weight_is_not_copied_unless_it_begins_at_an_odd_place(sim: None) -> None:
    room = torch.randn(40 * 64 + 1).half()
    whole, odd = room[:-1].view(40, 64), room[1:].view(40, 64)
    assert kernel_linear(whole).weight.data_ptr() == whole.data_ptr()
    moved = kernel_linear(odd)
    assert isinstance(moved.weight, Tensor) and moved.weight.data_ptr() % 16 == 0 and torch.equal(moved.weight, odd)


def wide(weight: Int4Weight) -> Int4Weight:
    """With scales that fp16 flushes to 0."""
    groups = weight.groups.float()
    groups[0, 0, 0] = 1e-9
    return replace(weight, groups=groups)


def fractional(weight: Int4Weight) -> Int4Weight:
    groups = weight.groups.clone()
    groups[..., 1] += 0.5
    return replace(weight, groups=groups)


def huge(weight: Int4Weight) -> Int4Weight:
    """15 times the scale is beyond fp16, the scale is not."""
    groups = weight.groups.clone()
    groups[0, 0] = torch.tensor([5e3, 0.0])
    return replace(weight, groups=groups)


REFUSED: dict[str, tuple[Callable[[], Int4Weight], str]] = {
    "weights beyond fp16": (lambda: huge(random_int4(32, 64, 32, "scale_zero")), "largest weights fp16 cannot hold"),
    "scales beyond fp16": (lambda: wide(random_int4(32, 64, 32, "scale_zero")), "fp16 cannot hold"),
    "groups of 16": (lambda: random_int4(32, 64, 16, "scale_bias"), "groups of 16"),
    "fractions as zero points": (lambda: fractional(random_int4(32, 64, 32, "scale_zero")), "whole numbers"),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_kernels_do_not_take_stays_exact_in_torch_and_says_so(
    make: Callable[[], Int4Weight], why: str, sim: None, launched: list[Kernel], seed: int
) -> None:
    weight = make()
    layer = make_linear(weight, HALF, Workspace())
    assert isinstance(layer, DequantizedLinear) and why in layer.why and why in layer.kernel
    x = some_rows(3, 64) / 64
    relative_error(layer(x), x.double() @ dense(weight).T, 6e-4)
    assert not launched


def test_a_dense_weight_beyond_fp16_stays_wide(sim: None) -> None:
    weight = torch.randn(8, 16)
    weight[0, 0] = 1e6
    assert isinstance(make_linear(weight, HALF, Workspace()), DenseLinear)


def test_kernels_are_for_their_executors_and_for_fp16(seed: int) -> None:
    int4, half = random_int4(32, 64, 32, "scale_zero"), torch.randn(32, 64).half()
    for weight in (int4, half):
        for dtype in (torch.float32, torch.bfloat16):
            with use_executor("sim"):
                assert not isinstance(make_linear(weight, dtype, Workspace()), KernelLinear)
        for executor in ("auto", "torch"):
            with use_executor(executor):
                assert not isinstance(make_linear(weight, HALF, Workspace()), KernelLinear)
        with use_executor("cuda"), pytest.raises(ExecutorError):
            make_linear(weight, HALF, Workspace())
    assert not isinstance(make_linear(half, torch.bfloat16, Workspace()), FusedLinear)


def test_layers_packed_for_kernels_also_run_in_torch(sim: None, launched: list[Kernel], seed: int) -> None:
    for weight in (random_int4(64, 64, 32, "scale_zero"), random_int8(64, 64, 32), torch.randn(64, 64).half()):
        layer = kernel_linear(weight)
        with use_executor("torch"):
            for count in (1, 6, 20, 130):
                x = some_rows(count, 64)
                relative_error(layer(x), x.double() @ dense(weight).T, QUANTIZED)
            layer.silu_mul(some_rows(2, 64))
    assert not launched


@pytest.mark.parametrize("model", ["labkit-tiny", "smollm2"])
def test_a_wheel_carries_what_the_small_models_need(model: str, smollm2_path: Any) -> None:
    form = "scale_bias" if model == "smollm2" else "scale_zero"
    for shape in model_shapes(model):
        for build in needed_builds(shape, form, SIMULATED):
            assert build.rung in LADDERS[build.op].rungs and build.macros in LADDERS[build.op].default_macros, build


def test_every_candidate_names_its_kernels() -> None:
    """All but the library's product of fp16 matrices, and of INT8 ones, which torch widens."""
    ops: set[str] = set()
    for kind, names in linear_candidates.CANDIDATES.items():
        shape = kernel_shape(kind)
        for name in names:
            made = builds(name, shape, "scale_zero", None)
            assert bool(made) == (name != "matmul" and (kind, name) != ("int8", "dequant_matmul"))
            ops.update(build.op for build in made)
    assert ops == set(PRODUCTS) <= set(LADDERS)
    for place in (SIMULATED, Place("", (9, 0))):
        rules = V100_RULES if place is SIMULATED else NEWER_RULES
        used = {build.op for build in needed_builds(kernel_shape("int4"), "scale_zero", place)}
        named = {rule.candidate.partition("/")[0] for rule in rules["int4"]}
        assert used == named - {"dequant_matmul"} | {"dequant_int4"}


def kernel_shape(kind: Any) -> WeightShape:
    return WeightShape(kind, 64, 128, 0 if kind == "half" else 64)
