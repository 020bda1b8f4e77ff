"""gated_rmsnorm beyond its rungs' checks: gates that overflow, lone rows, views, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.accuracy import HALF_STEP, relative_error
from helpers.ops_gdn import exact_gated_rmsnorm
from helpers.ops_kv import assert_same
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.gated_rmsnorm import RUNGS, gated_rmsnorm, macros
from labkit.ops.layout import GDN_DIMS

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize("rung", RUNGS)
def test_gates_of_every_size(rung: str, executor: str, seed: int) -> None:
    """From -65504, whose exp(-g) is infinite, to 65504; a head of zeros, one whose eps rules, and one far from 0."""
    x = torch.randn(3, 2, 64) * torch.tensor([0.0, 1e-6, 1e8])[:, None, None]
    gate = torch.linspace(-65504, 65504, 3 * 128).view(3, 128).half()
    gate[:, ::2] = torch.linspace(-100, 100, 64).half()
    weight = torch.full((64,), 0.05)  # so that the results are halves
    with use_executor(executor):
        y = gated_rmsnorm(x, gate, weight, 1e-6, rung=rung)
    assert not y[0].any() and y[1:].any() and y.isfinite().all()
    relative_error(y.unflatten(1, (2, 64)), exact_gated_rmsnorm(x, gate, weight, 1e-6), HALF_STEP)


@pytest.mark.parametrize("rung", RUNGS)
def test_rows_and_heads_change_no_bit_of_each_other(rung: str, seed: int) -> None:
    x, gate, weight = torch.randn(4, 3, 128), torch.randn(4, 384).half(), torch.randn(128)
    with use_executor("sim"):
        together = gated_rmsnorm(x, gate, weight, 1e-6, rung=rung)
        for row in range(4):
            alone = gated_rmsnorm(x[row : row + 1], gate[row : row + 1], weight, 1e-6, rung=rung)
            assert_same(alone[0], together[row])
        last = gated_rmsnorm(x[:, 2:], gate[:, 256:], weight, 1e-6, rung=rung)
    assert_same(last, together[:, 256:])


@pytest.mark.parametrize("rung", RUNGS)
def test_the_gate_is_read_where_it_lies(rung: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[list[int]] = []
    launch = Kernel.launch

    def noting(self: Kernel, grid: Any, block: Any, arguments: Any) -> None:
        launched.append([x.data_ptr() for x in arguments if isinstance(x, Tensor)])
        launch(self, grid, block, arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    x, gate = torch.randn(3, 2, 64), torch.randn(3, 512).half()[:, 384:]
    with use_executor("sim"):
        y = gated_rmsnorm(x, gate, torch.ones(64), 1e-6, rung=rung)
    [pointers] = launched
    assert {x.data_ptr(), gate.data_ptr()} <= set(pointers) and y.is_contiguous()


def test_what_does_not_lie_dense_is_copied(seed: int) -> None:
    x, gate, weight = torch.randn(2, 3, 128)[..., ::2], torch.randn(2, 384).half()[:, ::2], torch.randn(128)[::2]
    expected = gated_rmsnorm(x, gate, weight, 1e-6)
    with use_executor("sim"):
        torch.testing.assert_close(gated_rmsnorm(x, gate, weight, 1e-6), expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize("shape", [(0, 3, 64), (2, 0, 64)])
def test_nothing_is_nothing(shape: tuple[int, int, int], executor: str) -> None:
    with use_executor(executor):
        y = gated_rmsnorm(torch.ones(shape), torch.ones(shape[0], shape[1] * 64).half(), torch.ones(64), 1e-6)
    assert y.shape == (shape[0], shape[1] * 64) and y.dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_takes_gates_of_any_kind_and_heads_of_any_size(dtype: torch.dtype, seed: int) -> None:
    x, gate, weight = torch.randn(3, 2, 24), torch.randn(3, 48).to(dtype), torch.randn(24)
    y = gated_rmsnorm(x, gate, weight, 1e-5)
    assert y.dtype == dtype
    exact = exact_gated_rmsnorm(x, gate, weight, 1e-5).flatten(1)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5 if dtype == torch.float32 else 5e-3, atol=1e-6)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dim", GDN_DIMS)
@pytest.mark.parametrize("vec", [1, 2, 0])
def test_no_spills(rung: str, dim: int, vec: int) -> None:
    [needs] = Kernel("gated_rmsnorm", rung, "gated_rmsnorm", macros(dim, vec)).image.resources["sm_70"].values()
    assert needs.spill_stores == needs.spill_loads == 0
    assert needs.registers <= 32  # 64 warps of a multiprocessor have that many


# --- refusals ---------------------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "x": torch.ones(2, 3, 64),
    "gate": torch.ones(2, 192).half(),
    "weight": torch.ones(64),
    "eps": 1e-6,
}
EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"x": None}, "x is a NoneType"),
    "no gate": ({"gate": 1.0}, "gate is a float"),
    "x in half": ({"x": torch.ones(2, 3, 64).half()}, "x is float16"),
    "flat x": ({"x": torch.ones(2, 192)}, r"x has shape \[2, 192\]"),
    "gate by heads": ({"gate": torch.ones(2, 3, 64).half()}, r"gate has shape \[2, 3, 64\]; expected is \[2, 192\]"),
    "rows of the gate": ({"gate": torch.ones(3, 192).half()}, r"gate has shape \[3, 192\]"),
    "weight": ({"weight": torch.ones(192)}, r"weight has shape \[192\]"),
    "weight in half": ({"weight": torch.ones(64).half()}, "weight is float16"),
    "eps": ({"eps": "small"}, "eps is a str"),
}
BY_KERNELS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"gate": torch.ones(2, 192)}, "gate is float32"),
    "heads": (
        {"x": torch.ones(2, 3, 32), "gate": torch.ones(2, 96).half(), "weight": torch.ones(32)},
        "heads of 32 elements",
    ),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("changes", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(changes: dict[str, Any], told: str, executor: str) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=told) as caught:
        gated_rmsnorm(**{**GIVEN, **changes})
    assert caught.value.cure


@pytest.mark.parametrize(("changes", "told"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(changes: dict[str, Any], told: str) -> None:
    given = {**GIVEN, **changes}
    assert gated_rmsnorm(**given).isfinite().all()
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        gated_rmsnorm(**given)
    assert "executor torch" in caught.value.cure


@pytest.mark.parametrize("rung", ["", 3, "9_fast"])
def test_rungs_are_names(rung: Any) -> None:
    error = KernelBuildError if rung == "9_fast" else KernelArgumentError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        gated_rmsnorm(**GIVEN, rung=rung)
    assert "1_naive" in caught.value.cure
