"""qk_norm_rope_kv beyond its rungs' checks: bit for bit where nothing turns, views without copies, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import ops_qk
from helpers.ops_kv import assert_same, check_round_trip, check_store, hard_heads, random_slots, spoiled_pages
from helpers.ops_qk import projection, tables
from torch import Tensor

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import HEAD_DIMS
from labkit.ops.paged_kv import KVPages
from labkit.ops.qk_norm_rope_kv import RUNGS, macros, qk_norm_rope_kv, reference
from labkit.quant.kv import KVFormat

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
FORMATS = ("fp16", "int8", "int4", "k8v4")


def formatted(name: str) -> KVFormat:
    return KVFormat.named(name, torch.float16)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_keys_that_do_not_turn_are_stored_bit_for_bit(name: str, dim: int, seed: int) -> None:
    """Outliers of 60,000 among them: each within half a step, in the kernel's own output."""
    slots, count = random_slots((0, 62), (4, 3))
    pages = spoiled_pages(count, 2, dim, formatted(name))
    q, k, v = (hard_heads(7, heads, dim, finite=True) for heads in (1, 2, 2))
    cos, sin = torch.ones(7, 1, dim), torch.zeros(7, 1, dim)
    with use_executor("sim"):
        out = qk_norm_rope_kv(q, k, v, cos, sin, slots, pages)
    assert_same(out, pages.rotated(q).half())
    for store, new in ((pages.k, pages.rotated(k)), (pages.v, v)):
        check_store(store, new, slots)
        check_round_trip(store, new, slots, slack=1e-6)


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_keys_as_small_as_the_smallest_halves(
    name: str, normed: bool, executor: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a size with the finest step of a page: what a half loses there is no share of the number."""

    def tiny(tokens: int, heads: int, dim: int, **_: bool) -> Tensor:
        return (torch.randn(tokens, heads, dim) * 10 ** torch.empty(tokens, heads, 1).uniform_(-7, -4)).half()

    monkeypatch.setattr(ops_qk, "hard_heads", tiny)
    shape = ((0,), (3 if executor == "sim" else 2000,), 1, 1, 64, 64, (normed, normed), name, False, 0)
    with use_executor(executor):
        for rung in RUNGS:
            ops_qk.check_qk_norm_rope_kv(rung, shape, "cpu")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("rung", RUNGS)
def test_no_spills(rung: str, name: str, dim: int) -> None:
    """In any entry of the file: ``labkit build`` tells of the one that both rungs have."""
    bits = formatted(name)
    made = macros(dim, min(dim, 64), (True, True), (bits.k_bits, bits.v_bits))
    resources = Kernel("qk_norm_rope_kv", rung, "qk_norm_rope_kv", made).image.resources["sm_70"]
    assert len(resources) == (4 if rung == "1_separate" else 1)
    for needs in resources.values():
        assert needs.spill_stores == needs.spill_loads == needs.shared_bytes == 0
        assert needs.registers <= 64


@pytest.mark.parametrize("rung", RUNGS)
def test_views_are_read_where_they_lie(rung: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3.5's queries have their gates between them, and all are parts of one projection."""
    q, k, v = projection(3, 4, 2, 64, gated=True, gap=8)
    launched: list[tuple[str, list[Any]]] = []
    launch = Kernel.launch

    def noting(self: Kernel, grid: Any, block: Any, arguments: Any) -> None:
        launched.append((self.entry, [x.data_ptr() for x in arguments if isinstance(x, Tensor)]))
        launch(self, grid, block, arguments)

    monkeypatch.setattr(Kernel, "launch", noting)
    slots, count = random_slots((3,), (3,))
    with use_executor("sim"):
        qk_norm_rope_kv(q, k, v, *tables(3, 64), slots, KVPages.zeros(count, 2, 64, formatted("int4")), rung=rung)
    assert [entry for entry, _ in launched][-1] == "qk_norm_rope_kv"
    assert len(launched) == (3 if rung == "1_separate" else 1)
    assert {q.data_ptr(), k.data_ptr()} <= set(launched[0][1]) and v.data_ptr() in launched[-1][1]


def test_heads_that_do_not_lie_dense_are_copied(seed: int) -> None:
    q, k, v = (torch.randn(2, 1, 128).half()[..., ::2] for _ in range(3))
    slots, count = random_slots((3,), (2,))
    ours, theirs = (KVPages.zeros(count, 1, 64, formatted("fp16")) for _ in range(2))
    turning = tables(2, 64)
    expected = reference(q, k, v, *turning, slots, theirs)
    with use_executor("sim"):
        out = qk_norm_rope_kv(q, k, v, *turning, slots, ours)
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(ours.k.values, theirs.k.values, rtol=2e-3, atol=1e-3)
    assert_same(ours.v.values, theirs.v.values)


def test_no_tokens_no_queries() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for executor in ("torch", "sim"):
        with use_executor(executor):
            arguments = (torch.empty(0, 3, 64).half(), *(torch.empty(0, 1, 64).half(),) * 2, *tables(0, 64))
            pages = KVPages.zeros(2, 1, 64, formatted("int4"))
            out = qk_norm_rope_kv(*arguments, KVSlots(none, none, none), pages)
        assert out.shape == (0, 3, 64) and out.dtype == torch.float16


# --- refusals ---------------------------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "q": torch.ones(2, 3, 64).half(),
    "k": torch.ones(2, 1, 64).half(),
    "v": torch.ones(2, 1, 64).half(),
    "cos": torch.ones(2, 1, 32),
    "sin": torch.ones(2, 1, 32),
    "slots": KVSlots.at(torch.tensor([1, 1]), torch.tensor([4, 5])),
    "pages": KVPages.zeros(2, 1, 64, KVFormat(torch.float16)),
}
EVERYWHERE: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"q": 3}, "q is a int"),
    "heads of q": ({"q": torch.ones(2, 3, 32).half()}, "heads of q have 32 elements, those of the pages 64"),
    "tokens of q": ({"q": torch.ones(3, 3, 64).half()}, "k has shape"),
    "heads of k": ({"k": torch.ones(2, 2, 64).half()}, r"k has shape \[2, 2, 64\]"),
    "another dtype of q": ({"q": torch.ones(2, 3, 64)}, "q is float32"),
    "sin": ({"sin": torch.ones(2, 1, 30)}, r"sin has shape \[2, 1, 30\]"),
    "table in half": ({"cos": torch.ones(2, 1, 32).half()}, "cos is float16"),
    "more than the head turns": ({name: torch.ones(2, 1, 66) for name in ("cos", "sin")}, "66 of 64"),
    "odd part turns": ({name: torch.ones(2, 1, 7) for name in ("cos", "sin")}, "7 of 64"),
    "weight": ({"q_norm": torch.ones(32)}, r"q_norm has shape \[32\]"),
    "weight in half": ({"k_norm": torch.ones(64).half()}, "k_norm is float16"),
    "eps": ({"eps": "small"}, "eps is a str"),
    "page": ({"slots": KVSlots.at(torch.tensor([1, 2]), torch.tensor([4, 5]))}, "page 2 of 2"),
    "slots": ({"slots": KVSlots.at(torch.tensor([1]), torch.tensor([4]))}, "page has shape"),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("changes", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(changes: dict[str, Any], told: str, executor: str) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=told) as caught:
        qk_norm_rope_kv(**{**GIVEN, **changes})
    assert caught.value.cure


def heads_of(dim: int, dtype: torch.dtype = torch.float16) -> dict[str, Any]:
    heads = {name: torch.ones(2, 1, dim, dtype=dtype) for name in "qkv"}
    return {**GIVEN, **heads, "pages": KVPages.zeros(2, 1, dim, KVFormat(dtype))}


BY_KERNELS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "head dim": (lambda: heads_of(96), "heads of 96 elements"),
    "small heads": (lambda: heads_of(32), "heads of 32 elements"),
    "dtype": (lambda: heads_of(64, torch.float32), "float32; its kernels take float16"),
    "dtype of pages": (lambda: {**heads_of(64), "pages": heads_of(64, torch.float32)["pages"]}, "k_pages is float32"),
}


@pytest.mark.parametrize(("given", "told"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(given: Callable[[], dict[str, Any]], told: str) -> None:
    assert qk_norm_rope_kv(**given()).isfinite().all()
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        qk_norm_rope_kv(**given())
    assert caught.value.cure


@pytest.mark.parametrize("rung", ["", 3, "9_fast"])
def test_rungs_are_names(rung: Any) -> None:
    error = KernelBuildError if rung == "9_fast" else KernelArgumentError
    with use_executor("sim"), pytest.raises(error, match="rung") as caught:
        qk_norm_rope_kv(**GIVEN, rung=rung)
    assert "1_separate" in caught.value.cure
