"""kv_write in every format of the pages, and how pages are looked at after a step has written them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.accuracy import Shape
from torch import Tensor

from labkit.device import current_executor
from labkit.errors import KernelArgumentError
from labkit.ops import kv_write
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages, PageStore
from labkit.quant.kv import KVFormat, dequantize_int4, dequantize_int8, hadamard, quantize_int4, quantize_int8

SMALL: dict[str, list[Shape]] = {
    # contexts before the step, new tokens of each sequence, KV heads, head, elements between the tokens, format
    "kv_write": [
        ((0, 5, 63), (3, 1, 2), 2, 64, 0, "fp16"),
        ((0,), (130,), 1, 16, 16, "fp16"),
        ((64, 0, 127), (1, 1, 1), 3, 8, 0, "fp16"),
        ((10, 0), (64, 64), 2, 7, 5, "fp16"),
        ((0, 0), (1, 65), 4, 2, 0, "fp16"),
        ((0, 5, 63), (3, 1, 2), 2, 64, 0, "int8"),
        ((0,), (70,), 1, 128, 4, "int8"),
        ((63,), (2,), 3, 256, 3, "int8"),
        ((0, 64), (5, 1), 1, 64, 1, "int4"),
        ((0,), (70,), 1, 256, 8, "int4"),
        ((3, 0), (1, 1), 2, 128, 0, "int4"),
        ((62, 0), (2, 3), 1, 256, 0, "k8v4"),
        ((0, 9), (1, 64), 2, 64, 0, "k8v4"),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "kv_write": [
        ((0, 1000, 63), (4096, 1, 2), 4, 256, 0, "fp16"),
        (tuple(range(0, 640, 10)), (1,) * 64, 4, 256, 512, "fp16"),
        ((0, 127), (64, 200), 3, 64, 0, "fp16"),
        ((10, 0), (64, 641), 2, 7, 5, "fp16"),
        ((0,) * 50, (65,) * 50, 8, 128, 0, "fp16"),
        ((0, 1000, 63), (2048, 1, 2), 2, 256, 0, "int8"),
        (tuple(range(0, 640, 10)), (1,) * 64, 2, 256, 512, "int4"),
        ((0, 4097), (1000, 64), 3, 64, 7, "k8v4"),
        ((131071, 0), (1, 65), 8, 128, 0, "int4"),
    ],
}


def spaced(x: Tensor, gap: int) -> Tensor:
    """x [T, heads, D] as a view whose tokens lie ``gap`` elements apart."""
    tokens, heads, dim = x.shape
    room = torch.full((tokens, heads * dim + gap), float("nan"), dtype=x.dtype, device=x.device)
    view = room[:, : heads * dim].view(tokens, heads, dim)
    return view.copy_(x)


def random_slots(contexts: tuple[int, ...], lengths: tuple[int, ...], device: str = "cpu") -> tuple[KVSlots, int]:
    """Slots of a step in which each sequence, of so many tokens, gets so many more; and the pages there are."""
    counts = [-(-(c + n) // PAGE_SIZE) for c, n in zip(contexts, lengths, strict=True)]
    free = (torch.randperm(sum(counts)) + 1).tolist()
    page, offset = [], []
    for context, length, count in zip(contexts, lengths, counts, strict=True):
        table = torch.tensor([free.pop() for _ in range(count)])
        positions = torch.arange(context, context + length)
        page.append(table[positions // PAGE_SIZE])
        offset.append(positions % PAGE_SIZE)
    slots = KVSlots.at(torch.cat(page), torch.cat(offset))
    return KVSlots(*(x.to(device) for x in (slots.page, slots.offset, slots.fresh))), sum(counts) + 1


def spoiled_pages(pages: int, heads: int, dim: int, kv_format: KVFormat, device: str = "cpu") -> KVPages:
    """A pool in which an earlier owner left NaN everywhere, and codes of all ones."""
    pool = KVPages.zeros(pages, heads, dim, kv_format, device)
    for store in (pool.k, pool.v):
        for tensor in tensors_of(store):
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    return pool


def tensors_of(store: PageStore) -> list[Tensor]:
    return [store.values] if store.params is None else [store.values, store.params]


def hard_heads(tokens: int, heads: int, dim: int, *, finite: bool = False) -> Tensor:
    """fp16 heads of which some have outliers, one value, nearly none, the largest halves, or (unless finite) NaN."""
    x = torch.randn(tokens, heads, dim) * 10 ** torch.empty(tokens, heads, 1).uniform_(-3, 2)
    odd = torch.randint(0, 8, (tokens, heads))
    x[..., dim // 3] = torch.where(odd == 0, 6e4, x[..., dim // 3])
    x[..., -1] = torch.where(odd == 1, -6e4, x[..., -1])
    x = torch.where((odd == 2)[..., None], x.mean(-1, keepdim=True), x)
    x = torch.where((odd == 3)[..., None], x * 1e-6, x)
    x[..., 0] = torch.where(odd == 6, 65504, x[..., 0])
    x[..., -1] = torch.where(odd == 6, -65504, x[..., -1])
    if not finite:
        x[..., 1] = torch.where(odd == 4, torch.nan, x[..., 1])
        x[..., 0] = torch.where(odd == 5, -torch.inf, x[..., 0])
    return x.half()


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Equal, a NaN equal to any other."""
    same = ours == theirs
    if ours.is_floating_point():
        same |= ours.isnan() & theirs.isnan()
    assert same.all(), f"{int((~same).sum())} of {same.numel()} differ"


def as_stored(x: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """x [T, heads, D], rotated where it must be, as a store of pages keeps it; on the CPU, where division is exact."""
    if bits == 16:
        return x.cpu(), None
    return quantize_int8(x.cpu()) if bits == 8 else quantize_int4(x.cpu())


def check_store(store: PageStore, x: Tensor, slots: KVSlots) -> None:
    """The store was spoiled; a step has written x: bit for bit, fresh pages cleared, and nothing else touched."""
    page, offset = slots.page.tolist(), slots.offset.tolist()
    for ours, new in zip(tensors_of(store), as_stored(x, store.bits), strict=False):
        assert new is not None
        ours = ours.cpu()
        expected = torch.full_like(ours, float("nan") if ours.is_floating_point() else -1)
        expected[slots.fresh.cpu()] = 0
        for t, place in enumerate(zip(page, offset, strict=True)):
            expected[place[0], :, place[1]] = new[t]
        assert_same(ours, expected)


def written(store: PageStore, slots: KVSlots) -> tuple[Tensor, Tensor]:
    """What a step wrote, read back in fp64 [T, heads, D]; and the step between codes, 0 for pages of halves."""
    values = store.values[slots.page, :, slots.offset].cpu()
    if store.params is None:
        return values.double(), torch.zeros(())
    params = store.params[slots.page, :, slots.offset].cpu()
    if store.bits == 8:
        return dequantize_int8(values, params).double(), params.double()[..., None]
    back = dequantize_int4(values, params)
    return back.double(), params[..., 0].double().repeat_interleave(back.shape[-1] // params.shape[-2], dim=-1)


def check_round_trip(store: PageStore, x: Tensor, slots: KVSlots, slack: float, floor: float = 0.0) -> None:
    """Every element within half a step of x, ``slack`` of its row's largest and ``floor``, in rows that are finite.

    q s + b is rounded, and so is s: a 500th of a step more is allowed.
    """
    back, step = written(store, slots)
    exact = x.double().cpu()
    allowed = step * 0.502 + slack * exact.abs().amax(-1, keepdim=True) + floor
    finite = exact.isfinite().all(-1, keepdim=True)
    assert (((back - exact).abs() <= allowed) | ~finite).all()


def check_kv_write(rung: str, shape: Shape, device: str) -> None:
    """Bit for bit, and nothing else in the pools touched; rungs that write halves alone refuse other formats."""
    contexts, lengths, heads, dim, gap, name = shape
    slots, count = random_slots(contexts, lengths, device)
    pages = spoiled_pages(count, heads, dim, KVFormat.named(name, torch.float16), device)
    k, v = (spaced(hard_heads(sum(lengths), heads, dim).to(device), gap) for _ in range(2))
    if name != "fp16" and rung in kv_write.HALF_PAGES_ONLY and current_executor() != "torch":
        with pytest.raises(KernelArgumentError, match="writes fp16 pages"):
            kv_write.kv_write(k, v, slots, pages, rung=rung)
        return
    kv_write.kv_write(k, v, slots, pages, rung=rung)
    rotated = hadamard(k.cpu()) if pages.format.rotates else k
    for store, new in ((pages.k, rotated), (pages.v, v)):
        check_store(store, new, slots)
        check_round_trip(store, new, slots, slack=1e-6)


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "kv_write": (kv_write.RUNGS, check_kv_write),
}
FOLDERS: dict[str, str] = {}
