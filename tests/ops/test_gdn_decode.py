"""gdn_decode beyond its rungs' checks: hard gates, large numbers, many steps, views without copies, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.accuracy import FP32_SUMS, HALF_STEP, relative_error
from helpers.ops_gdn_decode import (
    TENSORS,
    Inputs,
    before,
    changed,
    check_step,
    draw_inputs,
    exact_step,
)
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.gdn_decode import RUNGS, gdn_decode
from labkit.ops.state_batch import StateBatch

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
SHAPE = (3, 1, 1, 2, 64, 64, 4)


# --- accuracy ---------------------------------------------------------------------------------------------------------

# a_log, dt_bias, a, b: decay and write strength from one end to the other
HARD_GATES: dict[str, tuple[float, float, float, float]] = {
    "keeps all, writes all": (0.0, 0.0, -13.8, 30.0),
    "keeps all, writes next to nothing": (-7.0, 0.0, -7.0, -14.0),
    "g = -30": (3.4012, 0.0, 0.5413, 0.0),
    "g = -1e5": (11.5129, 0.0, 0.5413, 1.0),
    "exp(a_log) is no half": (12.0, -5.0, -12.0, 2.0),
    "e^a overflows": (-9.0, 0.0, 60000.0, -1.0),
    "softplus is next to nothing": (0.0, 0.0, -60000.0, 60000.0),
    "the sum cancels": (1.0, 9.987, -10.0, -60000.0),
}


@pytest.mark.parametrize("rung", [*RUNGS, None], ids=str)
@pytest.mark.parametrize("gates", HARD_GATES.values(), ids=HARD_GATES.keys())
def test_hard_gates(gates: tuple[float, float, float, float], rung: str | None, seed: int) -> None:
    """None: the definition in torch."""
    inputs = draw_inputs(SHAPE)
    for x, value in zip((inputs.a_log, inputs.dt_bias, inputs.a, inputs.b), gates, strict=True):
        x.fill_(value)
    with use_executor("sim" if rung else "torch"):
        check_step(inputs, lambda given: given.run(rung))


@pytest.mark.parametrize("executor", ["torch", "sim"])
def test_large_values_states_and_gates_of_the_norm(executor: str, seed: int) -> None:
    inputs = draw_inputs(SHAPE)
    inputs.qkv[:, -128:] *= 60000 / inputs.qkv[:, -128:].abs().max()
    inputs.state.mul_(1e6)
    inputs.z[:, ::2], inputs.z[:, 1::2] = -60000.0, 2000.0
    inputs.norm_weight.fill_(0.5)
    with use_executor(executor):
        for rung in RUNGS:
            check_step(changed(inputs, state=inputs.state.clone()), lambda given, rung=rung: given.run(rung))


@pytest.mark.parametrize(
    ("rung", "a"),
    [
        *(pytest.param(rung, -3.0, marks=pytest.mark.slow) for rung in RUNGS[:-1]),
        *((rung, a) for rung in (RUNGS[-1], None) for a in (-14.0, -3.0)),
    ],
)
def test_three_hundred_steps_in_a_row(rung: str | None, a: float, seed: int) -> None:
    """One sequence from its first position on, NaN in its slot; every other step has the key of the one before.

    a: what decides how long the state remembers, some ten steps or all of them.
    """
    inputs = draw_inputs((1, 1, 1, 1, 64, 64, 0))
    exact = before(inputs).double()
    for step in range(300):
        drawn = draw_inputs((1, 1, 1, 1, 64, 64, 0))
        drawn.qkv[:, 64:128] = inputs.qkv[:, 64:128] if step % 2 else drawn.qkv[:, 64:128]
        drawn.a.fill_(a)
        batch = StateBatch.of([1], [step], inputs.batch.slots.tolist())
        inputs = changed(drawn, state=inputs.state, a_log=inputs.a_log.clamp(max=0), batch=batch)
        exact_out, exact, _ = exact_step(inputs, exact)
        with use_executor("sim" if rung else "torch"):
            out = inputs.run(rung)
        relative_error(out, exact_out[:, 0], HALF_STEP)
        relative_error(inputs.state[batch.slots], exact, FP32_SUMS)


def test_torch_takes_any_dtype_and_any_heads(seed: int) -> None:
    """As gdn_conv gives it there, in fp32; and heads that no kernel is built for."""
    inputs = draw_inputs((3, 1, 2, 6, 24, 40, 1))
    wide = changed(inputs, qkv=inputs.qkv.float() * 1.0001, z=inputs.z.bfloat16(), b=inputs.b.double())
    exact = exact_step(wide, before(wide))
    out = wide.run()
    assert out.dtype == torch.bfloat16
    relative_error(out.unflatten(1, (6, 40)), exact[0], 8 * HALF_STEP)
    relative_error(wide.state[wide.batch.slots], exact[1], FP32_SUMS)


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", RUNGS)
def test_views_are_read_where_they_lie(rung: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, launched = draw_inputs((2, 0, 1, 3, 64, 64, 7)), []
    launch = Kernel.launch

    def noting(self: Kernel, grid: Any, block: Any, arguments: Any) -> None:
        launched.append([x.data_ptr() for x in arguments if isinstance(x, Tensor)])
        launch(self, grid, block, arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    with use_executor("sim"):
        inputs.run(rung)
    assert len(launched) == 1
    assert {getattr(inputs, name).data_ptr() for name in TENSORS} <= set(launched[0])


def test_columns_that_lie_apart_are_copied(seed: int) -> None:
    inputs = draw_inputs(SHAPE)
    apart = {name: torch.stack((x, x), dim=2)[:, :, 0] for name, x in (("z", inputs.z), ("b", inputs.b))}
    odd = torch.empty(inputs.qkv.numel() + 1).half()[1:].view(inputs.qkv.shape).copy_(inputs.qkv)
    with use_executor("sim"):
        check_step(changed(inputs, qkv=odd, **apart), lambda given: given.run())


# --- refusals ---------------------------------------------------------------------------------------------------------


def call(inputs: Inputs, **changes: Any) -> Tensor:
    return gdn_decode(**inputs.arguments() | changes)


EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"z": 3}, "z is a int"),
    "channels": ({"qkv": torch.ones(3, 255).half()}, r"qkv has shape \[3, 255\]; expected is \[3, 256\]"),
    "rows of z": ({"z": torch.ones(2, 128).half()}, r"z has shape \[2, 128\]"),
    "heads of b": ({"b": torch.ones(3, 1).half()}, r"b has shape \[3, 1\]"),
    "dimensions of a": ({"a": torch.ones(3, 2, 1).half()}, r"a has shape \[3, 2, 1\]"),
    "a_log": ({"a_log": torch.ones(3)}, r"a_log has shape \[3\]"),
    "dt_bias in half": ({"dt_bias": torch.ones(2).half()}, "dt_bias is float16"),
    "norm_weight": ({"norm_weight": torch.ones(128)}, r"norm_weight has shape \[128\]"),
    "states in half": ({"state": torch.ones(6, 2, 64, 64).half()}, "state is float16"),
    "a state": ({"state": torch.ones(2, 64, 64)}, r"state has shape \[2, 64, 64\]"),
    "eps": ({"eps": "small"}, "eps is a str"),
    "no batch": ({"batch": [0, 1, 2]}, "batch is a list"),
    "rows of a sequence": ({"batch": StateBatch.of([1, 2], [5, 0], [0, 1])}, "a sequence has 2 rows"),
    "slot": ({"batch": StateBatch.of([1, 1, 1], [5, 0, 1], [0, 1, 6])}, "slot 6 of 6"),
    "sequences": ({"batch": StateBatch.of([1, 1], [5, 0], [0, 1])}, r"expected is \[2, 256\]"),
    "key heads": ({"key_heads": 3}, "2 value heads and 3 key heads"),
    "no key heads": ({"key_heads": 0}, "2 value heads and 0 key heads"),
    "half a key head": ({"key_heads": 0.5}, "key_heads is a float"),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("changes", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(changes: dict[str, Any], told: str, executor: str) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=told) as caught:
        call(draw_inputs(SHAPE), **changes)
    assert caught.value.cure


BY_KERNELS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "dtype of qkv": (lambda: {"qkv": torch.ones(3, 256)}, "qkv is float32; its kernels take float16"),
    "dtype of z": (lambda: {"z": torch.ones(3, 128).bfloat16()}, "z is bfloat16; its kernels take float16"),
    "states that lie apart": (lambda: {"state": torch.ones(6, 2, 64, 128)[..., ::2]}, "state has strides"),
    "an odd address": (lambda: {"state": torch.ones(6 * 2 * 64 * 64 + 1)[1:].view(6, 2, 64, 64)}, "starts at address"),
}


@pytest.mark.parametrize(("given", "told"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(given: Callable[[], dict[str, Any]], told: str) -> None:
    assert not call(draw_inputs(SHAPE), **given()).isnan().any()
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        call(draw_inputs(SHAPE), **given())
    assert caught.value.cure


@pytest.mark.parametrize(("dk", "dv"), [(32, 64), (64, 96), (256, 128)])
def test_heads_that_are_not_built(dk: int, dv: int) -> None:
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="kernels are built for 64 and 128") as caught:
        draw_inputs((1, 0, 1, 1, dk, dv, 0)).run()
    assert "torch" in caught.value.cure


@pytest.mark.parametrize("rung", ["", 3, "9_fast"])
def test_rungs_are_names(rung: Any) -> None:
    error = KernelBuildError if rung == "9_fast" else KernelArgumentError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        draw_inputs(SHAPE).run(rung)
    assert "1_naive" in caught.value.cure
