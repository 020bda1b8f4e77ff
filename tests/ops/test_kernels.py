"""Every rung of every kernel ladder on the simulator, with all checks on, against fp64; and the torch references."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.ops import CHECKS, SMALL, Shape, case_id, cases, check

from labkit.device import use_executor
from labkit.device.sim_executor import simulated_with
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.checks import block_size, named_sizes, span, vector_width
from labkit.ops.rmsnorm import MOST_ELEMENTS, add_rmsnorm, rmsnorm
from labkit.ops.rope import apply_rope, rope_table
from labkit.ops.silu_mul import silu_mul
from labkit.sim.options import Options


@pytest.mark.parametrize(("op", "rung", "shape"), cases(SMALL), ids=case_id)
def test_rung_on_the_simulator(op: str, rung: str, shape: Shape, seed: int) -> None:
    """Any finding of the simulator raises, whatever the numbers say. Diverged threads run in a random order."""
    with use_executor("sim"), simulated_with(Options(counters=False, shuffle_seed=seed)):
        check(op, rung, shape, "cpu")


@pytest.mark.parametrize("op", CHECKS)
def test_reference(op: str, seed: int) -> None:
    for shape in SMALL[op]:
        if op != "silu_mul":  # whose reference rounds in between
            check(op, CHECKS[op][0][-1], shape, "cpu")


def test_silu_mul_reference_rounds_twice(seed: int) -> None:
    x = torch.randn(5, 200).half()
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_mul(x).double(), gate * gate.sigmoid() * up, rtol=2e-3, atol=1e-7)


def test_nothing_is_launched_for_no_rows() -> None:
    with use_executor("sim"):
        assert rmsnorm(torch.empty(0, 64).half(), torch.ones(64), 1e-6).shape == (0, 64)
        assert silu_mul(torch.empty(0, 64).half()).shape == (0, 32)


def test_an_odd_view_gets_narrow_loads_and_the_same_result(seed: int) -> None:
    x, weight = torch.randn(2, 256).half(), torch.randn(256)
    room = torch.empty(513).half()
    odd = room[1:].view(2, 256).copy_(x)
    assert vector_width(8, [256], [x]) == 8 and vector_width(8, [256], [odd]) == 1
    with use_executor("sim"):
        torch.testing.assert_close(rmsnorm(odd, weight, 1e-6), rmsnorm(x, weight, 1e-6), rtol=1e-3, atol=0)


def test_a_strided_view_is_copied(seed: int) -> None:
    x, weight = torch.randn(3, 4, 128).half()[:, ::2, :64], torch.randn(64)
    with use_executor("sim"):
        y = rmsnorm(x, weight, 1e-6)
    assert y.shape == x.shape
    torch.testing.assert_close(y, rmsnorm(x, weight, 1e-6), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rmsnorm(torch.ones(2, 8), torch.ones(8), 1e-6), "x is float32; its kernels take float16"),
        (lambda: rmsnorm(torch.ones(2, 8).half(), torch.ones(9), 1e-6), r"weight has shape \[9\].*hidden = 8"),
        (lambda: rmsnorm(torch.ones(1, MOST_ELEMENTS + 1).half(), torch.ones(MOST_ELEMENTS + 1), 1e-6), "32768"),
        (lambda: add_rmsnorm(torch.ones(8, 2).half().T, torch.ones(2, 8).half(), torch.ones(8), 0), "dense"),
        (lambda: add_rmsnorm(torch.ones(2, 8).half(), torch.ones(3, 8).half(), torch.ones(8), 0), "same shape"),
        (lambda: silu_mul(torch.ones(2, 7).half()), "gate | up"),
        (lambda: apply_rope(torch.ones(2, 3, 4).half(), *rope_table(torch.ones(4), torch.arange(2))), "8 of 4"),
        (lambda: apply_rope(torch.ones(2, 3, 8).half(), *rope_table(torch.ones(4), torch.arange(3))), "tokens = 2"),
        (lambda: silu_mul(torch.ones(2, 8).half(), rung="9_best"), "9_best"),
    ],
)
def test_what_the_kernels_do_not_take(call: Callable[[], object], words: str) -> None:
    with use_executor("sim"), pytest.raises((KernelArgumentError, KernelBuildError), match=words):
        call()


def test_named_sizes_name_what_is_wrong() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 3)
    sizes = named_sizes("op", {"a": (a, torch.float32, ("rows", "n")), "b": (b, torch.float32, ("n", 3))})
    assert sizes == {"rows": 2, "n": 3}
    with pytest.raises(KernelArgumentError, match=r"op: b has shape \[3, 3\]; expected is \[rows = 2, n = 3\]"):
        named_sizes("op", {"a": (a, torch.float32, ("rows", "n")), "b": (b, torch.float32, ("rows", "n"))})
    with pytest.raises(KernelArgumentError, match=r"expected is \[n\]"):
        named_sizes("op", {"a": (a, torch.float32, ("n",))})


@pytest.mark.parametrize(("items", "threads"), [(1, 32), (32, 32), (33, 64), (256, 256), (100_000, 256)])
def test_block_size(items: int, threads: int) -> None:
    assert block_size(items) == threads


def test_span_covers_a_view_and_no_more() -> None:
    x = torch.arange(60).view(3, 4, 5)[:, 1:3, :4]
    covered = span(x)
    assert covered.data_ptr() == x.data_ptr() and covered.is_contiguous()
    assert (covered[0], covered[-1]) == (x[0, 0, 0], x[-1, -1, -1])
