"""kv_write beyond its rungs' checks: formats through KVPages, what is refused, and what the shipped rung costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.ops_kv import assert_same, hard_heads, random_slots, spoiled_pages, tensors_of

from labkit.device import Kernel, use_executor
from labkit.device.nvrtc import find_nvrtc
from labkit.errors import KernelArgumentError
from labkit.ops.kv_slots import KVSlots
from labkit.ops.kv_write import kv_write, macros
from labkit.ops.layout import HEAD_DIMS
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import KVFormat

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
FORMATS = ("fp16", "int8", "int4", "k8v4")
HALF = KVFormat(torch.float16)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_pages_are_written_alike_in_torch_and_on_the_simulator(name: str, dim: int, seed: int) -> None:
    """One step after the other: pages are begun, continued and filled."""
    kv_format = KVFormat.named(name, torch.float16)
    slots, count = random_slots((0, 60), (5, 3))
    more = KVSlots.at(slots.page[[4, 7]], slots.offset[[4, 7]] + 1)
    both = [spoiled_pages(count, 2, dim, kv_format) for _ in range(2)]
    for step in (slots, more):
        k, v = (hard_heads(len(step.page), 2, dim) for _ in range(2))
        for pages, executor in zip(both, ("torch", "sim"), strict=True):
            with use_executor(executor):
                pages.write(k, v, step)
    for ours, theirs in ((both[1].k, both[0].k), (both[1].v, both[0].v)):
        for a, b in zip(tensors_of(ours), tensors_of(theirs), strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("name", FORMATS)
def test_no_spills(name: str, dim: int) -> None:
    bits = KVFormat.named(name, torch.float16)
    kernel = Kernel("kv_write", "4_quantized", "kv_write", macros(2, dim, 0, bits.k_bits, bits.v_bits))
    needs = kernel.image.resources["sm_70"]["kv_write"]
    assert needs.spill_stores == needs.spill_loads == needs.shared_bytes == 0
    assert needs.registers <= 64  # a multiprocessor holds its 2048 threads, or half of them


def at(page: int, tokens: int = 1) -> KVSlots:
    return KVSlots.at(torch.full((tokens,), page), torch.arange(tokens) + 1)


def written(k: Any, v: Any = None, pages: KVPages | None = None, slots: KVSlots | None = None) -> None:
    pages = KVPages.zeros(3, 2, 64, HALF) if pages is None else pages
    kv_write(k, k if v is None else v, at(1) if slots is None else slots, pages)


def shifted_pages() -> KVPages:
    made = KVPages.zeros(3, 2, 64, KVFormat(torch.float16, 8, 8))
    room = torch.zeros(made.k.values.numel() + 4, dtype=torch.int8)[4:].view(made.k.values.shape)
    return KVPages(PageStore(room, made.k.params, 8), made.v, made.format, 64)


K = torch.ones(1, 2, 64).half()
EVERYWHERE: dict[str, tuple[Callable[[], Any], str]] = {
    "no tensor": (lambda: written([1.0]), "k is a list"),
    "another dtype of v": (lambda: written(K, K.float()), "v is float32"),
    "heads": (lambda: written(K[:, :1]), r"k has shape \[1, 1, 64\].*tokens, 2, 64"),
    "head": (lambda: written(K[..., :32]), r"k has shape \[1, 2, 32\]"),
    "tokens of v": (lambda: written(K, K.repeat(2, 1, 1)), "v has shape"),
    "slots": (lambda: written(K, slots=at(1, 2)), "page has shape"),
    "page": (lambda: written(K, slots=at(3)), "page 3 of 3"),
}
BY_KERNELS: dict[str, tuple[Callable[[], Any], str]] = {
    "dtype": (lambda: written(K.float()), "k is float32; its kernels take float16"),
    "dtype of pages": (
        lambda: written(K, pages=KVPages.zeros(3, 2, 64, KVFormat(torch.float32))),
        "k_pages is float32",
    ),
    "quantized heads of another size": (
        lambda: written(torch.ones(1, 2, 96).half(), pages=KVPages.zeros(3, 2, 96, KVFormat(torch.float16, 8, 8))),
        "heads of 96 elements",
    ),
    "address": (lambda: written(K, pages=shifted_pages()), "k_pages starts at address"),
}


@pytest.mark.parametrize("executor", ["torch", "sim"])
@pytest.mark.parametrize(("call", "told"), EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_refused_everywhere(call: Callable[[], Any], told: str, executor: str) -> None:
    with use_executor(executor), pytest.raises(KernelArgumentError, match=told) as caught:
        call()
    assert caught.value.cure


@pytest.mark.parametrize(("call", "told"), BY_KERNELS.values(), ids=BY_KERNELS.keys())
def test_refused_by_kernels(call: Callable[[], Any], told: str) -> None:
    call()
    with use_executor("sim"), pytest.raises(KernelArgumentError, match=told) as caught:
        call()
    assert caught.value.cure


def test_nothing_is_written_for_no_tokens() -> None:
    pages = spoiled_pages(2, 2, 64, HALF)
    none = torch.empty(0, dtype=torch.int64)
    with use_executor("sim"):
        kv_write(K[:0], K[:0], KVSlots(none, none, none), pages)
    assert pages.k.values.isnan().all()
