"""What operations make of odd arguments on the simulator: what torch makes of them, or a typed refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.kv_slots import KVSlots
from labkit.ops.kv_write import RUNGS as KV_RUNGS
from labkit.ops.kv_write import kv_write
from labkit.ops.paged_kv import KVPages
from labkit.ops.rmsnorm import add_rmsnorm, rmsnorm
from labkit.ops.rope import apply_rope, apply_rope_qk, inverse_frequencies, rope_table
from labkit.ops.silu_mul import silu_mul
from labkit.ops.softmax_online import softmax
from labkit.quant.kv import KVFormat

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")


def half(*shape: int) -> Tensor:
    return torch.randn(shape).half()


def turned(q_heads: int, k_heads: int, dim: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    tables = rope_table(inverse_frequencies(1e4, rotary_dim), torch.arange(3))
    q, k = (torch.ones(3, heads, dim).half() for heads in (q_heads, k_heads))
    return apply_rope_qk(q, k, *tables)


EMPTY: dict[str, Callable[[], Any]] = {
    "rmsnorm without columns": lambda: rmsnorm(half(4, 0), torch.ones(0), 1e-6),
    "rmsnorm without rows": lambda: rmsnorm(half(0, 3, 8), torch.ones(8), 1e-6),
    "add_rmsnorm without columns": lambda: add_rmsnorm(half(4, 0), half(4, 0), torch.ones(0), 1e-6),
    "silu_mul without columns": lambda: silu_mul(half(3, 0)),
    "softmax without columns": lambda: softmax(torch.zeros(3, 0)),
    "softmax without rows": lambda: softmax(torch.zeros(0, 3)),
    "rope without query heads": lambda: turned(0, 2, 64, 64),
    "rope without key heads": lambda: turned(2, 0, 64, 64),
    "rope without any": lambda: turned(0, 0, 64, 64),
    "rope without dimensions": lambda: turned(2, 2, 0, 0),
    "rope that turns nothing": lambda: turned(2, 2, 8, 0),
}


@pytest.mark.parametrize("compute", EMPTY.values(), ids=EMPTY.keys())
def test_nothing_is_nothing_everywhere(compute: Callable[[], Any]) -> None:
    expected = compute()
    with use_executor("sim"):
        found = compute()
    together = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for there, here in together:
        assert there.shape == here.shape and there.dtype == here.dtype
        torch.testing.assert_close(here, there, rtol=2e-3, atol=1e-3)


def odd_address() -> Tensor:
    return torch.frombuffer(bytearray(300), dtype=torch.float16, offset=1, count=128)


X, W = torch.ones(2, 8).half(), torch.ones(8)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rmsnorm 0-d": (lambda: rmsnorm(torch.tensor(1.0).half(), W, 1e-6), "no dimensions"),
    "add_rmsnorm 0-d": (lambda: add_rmsnorm(torch.tensor(1.0).half(), torch.tensor(1.0).half(), W, 1e-6), "no dim"),
    "silu_mul 0-d": (lambda: silu_mul(torch.tensor(1.0).half()), "no dimensions"),
    "softmax 0-d": (lambda: softmax(torch.tensor(1.0)), "no dimensions"),
    "eps text": (lambda: rmsnorm(X, W, "1e-6"), "eps is a str"),  # type: ignore[arg-type]
    "eps None": (lambda: rmsnorm(X, W, None), "eps is a NoneType"),  # type: ignore[arg-type]
    "eps huge": (lambda: rmsnorm(X, W, 10**400), "eps is too large"),
    "eps complex": (lambda: rmsnorm(X, W, 1j), "eps is a complex"),  # type: ignore[arg-type]
    "eps too large for fp32": (lambda: rmsnorm(X, W, 1e39), "too large"),
    "scale huge": (lambda: softmax(torch.ones(2, 3), -(10**400)), "scale is too large"),
    "scale of two": (lambda: softmax(torch.ones(2, 3), torch.ones(2)), "scale is a Tensor"),  # type: ignore[arg-type]
    "weight None": (lambda: rmsnorm(X, None, 1e-6), "weight is a NoneType"),  # type: ignore[arg-type]
    "weight list": (lambda: rmsnorm(X, [1.0] * 8, 1e-6), "weight is a list"),  # type: ignore[arg-type]
    "sparse": (lambda: silu_mul(X.to_sparse()), "sparse_coo"),
    "gradient": (lambda: rmsnorm(X.clone().requires_grad_(), W, 1e-6), "requires a gradient"),
    "gradient of the weight": (lambda: rmsnorm(X, W.clone().requires_grad_(), 1e-6), "requires a gradient"),
    "odd address": (lambda: silu_mul(odd_address()), "starts at address"),
}


@pytest.mark.parametrize(("compute", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_are_typed(compute: Callable[[], Any], told: str) -> None:
    with torch.enable_grad(), use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        compute()
    assert caught.value.cure


RUNGS: dict[str, Callable[[Any], Any]] = {
    "rmsnorm": lambda rung: rmsnorm(X, W, 1e-6, rung=rung),
    "add_rmsnorm": lambda rung: add_rmsnorm(X.clone(), X, W, 1e-6, rung=rung),
    "silu_mul": lambda rung: silu_mul(X, rung=rung),
    "softmax": lambda rung: softmax(X.float(), rung=rung),
    "rope": lambda rung: apply_rope(X[:, None], *(x[:2] for x in (torch.ones(2, 1, 8),) * 2), rung=rung),
    "kv_write": lambda rung: write([1, 1], [0, 1], rung=rung),
}


@pytest.mark.parametrize("op", RUNGS)
@pytest.mark.parametrize("rung", ["", ["3_vector"], 3, "9_fast", "../rmsnorm/1_naive"], ids=str)
def test_rungs_are_names(op: str, rung: Any) -> None:
    error = KernelArgumentError if not isinstance(rung, str) or not rung else KernelBuildError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        RUNGS[op](rung)
    assert "1_" in caught.value.cure


def test_weights_that_train_elsewhere_are_taken_under_no_grad() -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    with use_executor("sim"), torch.no_grad():
        assert not rmsnorm(X, weight, 1e-6).requires_grad


@pytest.mark.parametrize("rung", ["2_shuffle", "3_vector"])
@pytest.mark.parametrize("threads", [33, 2048])
def test_blocks_of_whole_warps(rung: str, threads: int) -> None:
    macros = {"HIDDEN": 256, "THREADS": threads, "VEC": 8, "ZERO_CENTERED": 0}
    with pytest.raises(KernelBuildError, match="multiple of 32, at most 1024"):
        Kernel("rmsnorm", rung, "rmsnorm", macros).facts  # noqa: B018


# --- slots ----------------------------------------------------------------------------------------------------------


def write(page: list[int], offset: list[int], fresh: list[int] | None = None, rung: Any = None) -> Tensor:
    """Pages of sevens after a step."""
    where, pages = torch.tensor(page), KVPages.zeros(4, 2, 8, KVFormat(torch.float16))
    pages.k.values.fill_(7.0)
    first = torch.tensor(offset) == 0
    slots = KVSlots(where, torch.tensor(offset), where[first] if fresh is None else torch.tensor(fresh).long())
    k = torch.ones(len(page), 2, 8).half()
    kv_write(k, k, slots, pages, rung=rung)
    return pages.k.values


SLOTS: dict[str, tuple[list[int], list[int], list[int] | None]] = {
    "negative page": ([-1], [3], None),
    "negative offset": ([1], [-1], None),
    "offset behind the page": ([1], [64], None),
    "fresh, but not begun": ([1], [3], [1]),
    "begun, but not fresh": ([1], [0], []),
    "another page fresh": ([1], [0], [2]),
    "a slot twice": ([1, 1], [3, 3], None),
    "out of order": ([1, 1], [4, 3], None),
    "a page in two pieces": ([1, 2, 1], [0, 0, 1], None),
    "one offset too few": ([1, 1], [0], [1]),
}


@pytest.mark.parametrize(("page", "offset", "fresh"), SLOTS.values(), ids=SLOTS.keys())
@pytest.mark.parametrize("executor", ["torch", "sim"])
def test_slots_that_contradict_themselves(
    page: list[int], offset: list[int], fresh: list[int] | None, executor: str
) -> None:
    slots = torch.tensor(page), torch.tensor(offset), torch.tensor([1] if fresh is None else fresh).long()
    if fresh is None and 0 not in offset:
        slots = (*slots[:2], torch.empty(0, dtype=torch.int64))
    with use_executor(executor), pytest.raises(KernelArgumentError, match="kv_write"):
        KVSlots(*slots)


def test_slots_are_integers() -> None:
    for dtype in (torch.int32, torch.float32):
        with pytest.raises(KernelArgumentError, match="int64"):
            KVSlots.at(torch.ones(1, dtype=dtype), torch.ones(1, dtype=torch.int64))
    with pytest.raises(KernelArgumentError, match="kv_write"):
        KVSlots.at(torch.ones(2).long(), torch.ones(1).long())


def test_pages_behind_the_pool_are_refused() -> None:
    with use_executor("sim"), pytest.raises(KernelArgumentError, match="page 4 of 4"):
        write([4], [1])


def test_a_fresh_page_is_cleared_alike_everywhere() -> None:
    expected = write([2, 2, 3], [0, 1, 5])
    for rung in KV_RUNGS:
        with use_executor("sim"):
            assert torch.equal(write([2, 2, 3], [0, 1, 5], rung=rung), expected)
