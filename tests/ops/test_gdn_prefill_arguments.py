"""What gdn_prefill refuses, and that it says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from labkit.device import use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops import gdn_prefill
from labkit.ops.state_batch import StateBatch

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


def given(**changes: Any) -> dict[str, Any]:
    """Arguments for two sequences of one and two rows, two value heads on one key head of 64."""
    made = {
        "qkv": torch.ones(3, 256).half() / 8,
        "b": torch.ones(3, 2).half(),
        "a": torch.ones(3, 2).half(),
        "a_log": torch.zeros(2),
        "dt_bias": torch.zeros(2),
        "state": torch.zeros(3, 2, 64, 64),
        "batch": StateBatch.of([1, 2], [4, 0], [0, 2]),
        "key_heads": 1,
    }
    return {**made, **changes}


EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"qkv": 3}, "qkv is a int"),
    "no batch": ({"batch": None}, "batch is a NoneType"),
    "rows": ({"qkv": torch.ones(4, 256).half()}, r"qkv has shape \[4, 256\]; expected is \[3, 256\]"),
    "channels": ({"qkv": torch.ones(3, 320).half()}, r"qkv has shape \[3, 320\]; expected is \[3, 256\]"),
    "rows of b": ({"b": torch.ones(2, 2).half()}, r"b has shape \[2, 2\]"),
    "heads of a": ({"a": torch.ones(3, 3).half()}, r"a has shape \[3, 3\]"),
    "a_log": ({"a_log": torch.zeros(3)}, r"a_log has shape \[3\]"),
    "a_log in half": ({"a_log": torch.zeros(2).half()}, "a_log is float16"),
    "dt_bias": ({"dt_bias": torch.zeros(2).half()}, "dt_bias is float16"),
    "state in half": ({"state": torch.zeros(3, 2, 64, 64).half()}, "state is float16"),
    "state": ({"state": torch.zeros(3, 2, 64)}, r"state has shape \[3, 2, 64\]"),
    "slot": ({"batch": StateBatch.of([1, 2], [0, 0], [0, 3])}, "slot 3 of 3"),
    "key heads": ({"key_heads": 3}, "3 key heads for 2 value heads"),
    "no key heads": ({"key_heads": 0}, "0 key heads"),
    "key heads as a tensor": ({"key_heads": torch.tensor(1)}, "key heads"),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("changes", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(changes: dict[str, Any], told: str, executor: str) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=told) as caught:
        gdn_prefill.gdn_prefill(**given(**changes))
    assert caught.value.cure


BY_KERNELS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "qkv": (lambda: {"qkv": torch.ones(3, 256)}, "qkv is float32; its kernels take float16"),
    "b": (lambda: {"b": torch.ones(3, 2)}, "b is float32"),
    "a": (lambda: {"a": torch.ones(3, 2)}, "a is float32"),
    "heads": (
        lambda: {"qkv": torch.ones(3, 128).half(), "state": torch.zeros(3, 2, 32, 32)},
        "heads have 32 and 32 elements",
    ),
    "state": (lambda: {"state": torch.zeros(3, 2, 64, 128)[..., ::2]}, "state has strides"),
}


@pytest.mark.parametrize(("changes", "told"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(changes: Callable[[], dict[str, Any]], told: str) -> None:
    assert gdn_prefill.gdn_prefill(**given(**changes())).isfinite().all()
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        gdn_prefill.gdn_prefill(**given(**changes()))
    assert caught.value.cure


@pytest.mark.parametrize("rung", ["", 3, "9_fast"])
def test_rungs_are_names(rung: Any) -> None:
    error = KernelBuildError if rung == "9_fast" else KernelArgumentError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        gdn_prefill.gdn_prefill(**given(), rung=rung)
    assert "1_recurrent" in caught.value.cure
