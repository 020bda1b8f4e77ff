"""attention_decode: every rung against fp64 on what the pages hold, with shuffled pages and NaN where no token is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from helpers.accuracy import QUANTIZED, Shape, relative_error
from helpers.paged import Paged, random_paged
from torch import Tensor

from labkit.device import executor_for
from labkit.ops.attention_decode import RUNGS, attention_decode
from labkit.ops.attention_decode_plan import SPLIT_RUNGS
from labkit.ops.kv_slots import KVSlots
from labkit.ops.layout import PAGE_SIZE
from labkit.ops.paged_kv import KVPages
from labkit.quant.kv import KVFormat

LSE_ERROR = 5e-4  # absolute: that of the largest exponents, which are sums in fp32

# lengths, rows of each sequence, KV heads, query heads of each, D, format, with a gate and sums, splits (None: by size)
SMALL: dict[str, list[Shape]] = {
    "attention_decode": [
        ((1, 65), (1, 1), 1, 6, 256, "fp16", True, None),
        ((64, 63), (2, 1), 1, 4, 64, "int8", False, 2),
        ((200,), (1,), 1, 3, 128, "int4", True, 4),
        ((130, 3), (3, 2), 2, 1, 64, "k8v4", False, 3),
        ((150,), (2,), 1, 8, 64, "fp16", True, 1),
        ((66,), (5,), 1, 2, 128, "int8", False, 2),
        ((65,), (1,), 1, 2, 256, "k8v4", True, 2),
    ],
}
FORMATS = ("fp16", "int8", "int4", "k8v4")
LARGE: dict[str, list[Shape]] = {
    "attention_decode": [
        *(((n,), (1,), 2, 6, 256, f, False, None) for n in (1, 63, 64, 65, 1000, 4097) for f in FORMATS),
        *(((131072,), (1,), 2, 6, 256, f, True, None) for f in FORMATS),
        *(
            ((4097, 1000, 65, 1), (1, 1, 1, 1), 2, g, d, "fp16", True, None)
            for g in (1, 3, 4, 8)
            for d in (64, 128, 256)
        ),
        *(((4097, 900, 8), (8, 3, 8), 2, 6, 256, f, True, None) for f in FORMATS),
        ((3000,) * 17, tuple(range(1, 9)) * 2 + (1,), 4, 6, 256, "int8", True, None),
        ((70000, 5), (4, 4), 1, 12, 128, "int4", True, 256),
    ],
}


def paged_with(k: Tensor, v: Tensor, name: str, rotated: bool) -> Paged:
    """One sequence of these keys and values, fp32 [tokens, kv_heads, D]. rotated: keys too, where the pages rotate.

    Without that the pages hold the keys as they are made here; either way queries are those of the kernels.
    """
    tokens, kv_heads, dim = k.shape
    table = list(range(-(-tokens // PAGE_SIZE), 0, -1))
    pages = KVPages.zeros(len(table) + 1, kv_heads, dim, KVFormat.named(name, torch.float16))
    positions = torch.arange(tokens)
    slots = KVSlots.at(torch.tensor(table)[positions // PAGE_SIZE], positions % PAGE_SIZE)
    pages.k.write(pages.rotated(k) if rotated else k, slots)
    pages.v.write(v, slots)
    return Paged(pages, [table], [tokens])


def exact(q: Tensor, paged: Paged, rows: Sequence[int], scale: float) -> tuple[Tensor, Tensor]:
    """fp64 softmax over gathered pages, a sequence at a time: [T, heads, D] and the logarithms of the sums."""
    outputs, sums, first = [], [], 0
    for count, length, table in zip(rows, paged.lengths, paged.tables, strict=True):
        used = torch.tensor(table, device=q.device)
        k, v = (x[:, :length].double() for x in paged.pages.gather(used))
        queries = q[first : first + count].double().unflatten(1, (k.shape[0], -1))
        scores = torch.einsum("tkgd,kcd->tkgc", queries, k) * scale
        end = torch.arange(length - count, length, device=q.device)[:, None, None, None]
        scores = scores.masked_fill(torch.arange(length, device=q.device) > end, -torch.inf)
        outputs.append(torch.einsum("tkgc,kcd->tkgd", scores.softmax(-1), v).flatten(1, 2))
        sums.append(scores.logsumexp(-1).flatten(1))
        first += count
    return torch.cat(outputs), torch.cat(sums)


def cleared(paged: Paged) -> None:
    """The executor torch reads whole pages, and relies on what the engine promises: zeros behind the last token."""
    for store in (paged.pages.k, paged.pages.v):
        for tensor in (store.values, store.params):
            if tensor is not None and tensor.is_floating_point():
                tensor.nan_to_num_()


def strided_gate(q: Tensor) -> Tensor:
    """As the model has it: every second stretch of D elements of one projection."""
    room = torch.full((*q.shape[:2], 2, q.shape[2]), float("nan")).half().to(q.device)
    room[:, :, 1] = torch.randn(q.shape).half().to(q.device)
    return room[:, :, 1]


def check_attention_decode(rung: str, shape: Shape, device: str) -> None:
    lengths, rows, kv_heads, group, dim, name, extras, split_count = shape
    paged = random_paged(lengths, kv_heads, dim, KVFormat.named(name, torch.float16), device)
    q = torch.randn(sum(rows), kv_heads * group, dim).half().to(device)
    if executor_for(q) == "torch":
        cleared(paged)
    scale = 1.3 * dim**-0.5
    gate = strided_gate(q) if extras else None
    lse = torch.empty(q.shape[:2], device=device) if extras else None
    batch, count = paged.batch(rows), split_count if rung in SPLIT_RUNGS else None
    out = attention_decode(q, paged.pages, batch, scale=scale, gate=gate, lse=lse, rung=rung, split_count=count)
    expected, sums = exact(q, paged, rows, scale)
    relative_error(out, expected if gate is None else expected * gate.double().sigmoid(), QUANTIZED)
    if lse is not None:
        worst = (lse.double() - sums).abs().max().item()
        assert worst <= LSE_ERROR, f"a logarithm of a sum is off by {worst:.1e}, allowed {LSE_ERROR:.1e}"


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "attention_decode": (RUNGS, check_attention_decode),
}
FOLDERS: dict[str, str] = {}
