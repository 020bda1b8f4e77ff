"""qk_norm_rope_kv: norms, RoPE and rotation against fp64, and what lies in the pages afterwards."""

from __future__ import annotations

from collections.abc import Callable

import torch
from helpers.accuracy import HALF_STEP, QUANTIZED, Shape, relative_error
from helpers.ops_kv import (
    assert_same,
    check_round_trip,
    check_store,
    hard_heads,
    random_slots,
    spoiled_pages,
    tensors_of,
    written,
)
from torch import Tensor

from labkit.device import executor_for
from labkit.ops import qk_norm_rope_kv
from labkit.ops.kv_slots import KVSlots
from labkit.ops.paged_kv import PageStore
from labkit.ops.rope import inverse_frequencies, rope_table
from labkit.quant.kv import KVFormat

SMALL: dict[str, list[Shape]] = {
    # contexts, new tokens, heads of q and of k, head, turned part, norms of q and k, format, a gate beside each head of
    # q, elements between the tokens
    "qk_norm_rope_kv": [
        ((0, 5, 63), (3, 1, 1), 3, 1, 256, 64, (True, True), "fp16", True, 0),
        ((0,), (70,), 3, 1, 64, 64, (False, False), "fp16", False, 0),
        ((63,), (2,), 4, 2, 128, 128, (True, True), "int8", False, 4),
        ((0,), (5,), 1, 1, 64, 20, (True, False), "int8", True, 3),
        ((0, 7), (1, 65), 2, 1, 128, 128, (False, True), "int4", False, 0),
        ((62,), (5,), 6, 1, 256, 64, (True, True), "int4", True, 0),
        ((0,), (1,), 3, 3, 64, 64, (False, False), "int4", False, 1),
        ((0,), (70,), 1, 1, 256, 256, (True, True), "k8v4", False, 0),
        ((200, 0), (1, 4), 4, 1, 256, 40, (False, False), "k8v4", False, 2),
        ((0,), (3,), 2, 2, 128, 0, (True, True), "fp16", False, 0),
    ],
}
LARGE: dict[str, list[Shape]] = {
    "qk_norm_rope_kv": [
        ((0, 1000, 63), (2048, 1, 2), 12, 2, 256, 64, (True, True), "fp16", True, 0),
        ((131071,), (1,), 12, 2, 256, 64, (True, True), "int4", True, 0),
        (tuple(range(0, 640, 10)), (1,) * 64, 12, 2, 256, 64, (True, True), "int8", True, 0),
        ((0, 64, 65), (65, 1000, 1), 9, 3, 64, 64, (False, False), "k8v4", False, 0),
        ((0, 4096), (63, 1), 32, 8, 128, 128, (True, True), "int4", False, 5),
        ((1,), (4096,), 8, 8, 128, 32, (False, False), "int8", False, 8),
    ],
}


def projection(tokens: int, heads: int, kv_heads: int, dim: int, gated: bool, gap: int) -> tuple[Tensor, ...]:
    """q, k, v as views of one projection, whose gates and gaps hold NaN: nothing may read them."""
    blocks = heads * (2 if gated else 1)
    width = (blocks + 2 * kv_heads) * dim
    rows = torch.full((tokens, width + gap), float("nan"), dtype=torch.float16)
    all_heads = rows[:, :width].unflatten(1, (-1, dim))
    q, k, v = all_heads.split((blocks, kv_heads, kv_heads), dim=1)
    q = q.unflatten(1, (heads, 2))[:, :, 0] if gated else q
    for x in (q, k, v):
        x.copy_(hard_heads(tokens, x.shape[1], dim, finite=True).clamp(-4e3, 4e3))  # rotated ones still fit a half
    return q, k, v


def exact_head(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, rotates: bool) -> Tensor:
    """Norm, RoPE and rotation in fp64."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    if weight is not None:
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    half = cos.shape[-1] // 2
    a, b, c, s = x[..., :half], x[..., half : 2 * half], cos[..., half:], sin[..., half:]
    x = torch.cat((a * c - b * s, b * c + a * s, x[..., 2 * half :]), dim=-1)
    return x @ hadamard_matrix(x.shape[-1]).to(x.device) if rotates else x


def hadamard_matrix(size: int) -> Tensor:
    """Sylvester's construction, orthogonal: fp64 [size, size]."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix / size**0.5


def check_qk_norm_rope_kv(rung: str, shape: Shape, device: str) -> None:
    """Queries against fp64; values bit for bit; keys within half a step of fp64; nothing else touched."""
    contexts, lengths, heads, kv_heads, dim, rotary_dim, normed, name, gated, gap = shape
    tokens = sum(lengths)
    slots, count = random_slots(contexts, lengths, device)
    pages = spoiled_pages(count, kv_heads, dim, KVFormat.named(name, torch.float16), device)
    q, k, v = projection(tokens, heads, kv_heads, dim, gated, gap)
    q, k, v = (moved(x, device) for x in (q, k, v))
    cos, sin = (x.to(device) for x in tables(tokens, rotary_dim))
    norms = [torch.empty(dim).uniform_(0.5, 2.0).to(device) if wanted else None for wanted in normed]
    out = qk_norm_rope_kv.qk_norm_rope_kv(
        q, k, v, cos, sin, slots, pages, q_norm=norms[0], k_norm=norms[1], eps=1e-6, rung=rung
    )
    fused = rung == "2_fused" and executor_for(q) != "torch"
    tolerance = HALF_STEP if fused else QUANTIZED
    exact_q, exact_k = (
        exact_head(x, weight, cos, sin, pages.format.rotates) for x, weight in ((q, norms[0]), (k, norms[1]))
    )
    assert out.is_contiguous() and out.dtype == q.dtype
    relative_error(out, exact_q, tolerance)
    check_store(pages.v, v, slots)
    slack, floor = (1e-5, 0.0) if fused else (QUANTIZED, lost_in_halves(dim, normed[1], pages.format.rotates))
    check_keys(pages.k, exact_k, slots, tolerance, slack, floor)


def lost_in_halves(dim: int, normed: bool, rotates: bool) -> float:
    """What an element of K may lose, whatever its row's size, because separate operations leave halves.

    Rounding x to a half is off by 2^-11 |x| or by t = 2^-25, half of the distance between the smallest halves,
    whichever is more. The first is the slack: of an element of a row whose largest is M

        norm    2^-11 |(a, b)| after the turn, of a pair (a, b) that is no longer than sqrt(2) M: sqrt(2) 2^-11 M
        turn    2^-11 M, so together 1.2e-3 M of the 2e-3 M that the slack grants
        rotate  2^-11 M; what came before it adds up over a head by its signs, of which M has its share as well

    The second, which no slack covers (a row of 4e-6 is stored in steps of 2^-17, and t is 0.004 of a step):

        norm    t in each of a pair, which a turn makes sqrt(2) t
        turn    t
        rotate  a row of H has length 1, so the errors' 2-norm at most, sqrt(D) t for each of the two above; and t
    """
    floor = 2.0**-25
    if not rotates:
        return floor * (1 + (2**0.5 if normed else 0))
    return floor * (1 + dim**0.5 * (2 if normed else 1))


def check_keys(
    store: PageStore, exact: Tensor, slots: KVSlots, tolerance: float, slack: float, floor: float = 0.0
) -> None:
    """Keys as written against fp64, and no other place of their pool touched."""
    if store.bits == 16:
        relative_error(written(store, slots)[0], exact.cpu(), tolerance)
    else:
        check_round_trip(store, exact, slots, slack, floor)
    for tensor in tensors_of(store):
        rest, spoil = tensor.cpu().clone(), float("nan") if tensor.is_floating_point() else -1
        expected = torch.full_like(rest, spoil)
        expected[slots.fresh.cpu()] = 0
        rest[slots.page.cpu(), :, slots.offset.cpu()] = 0
        expected[slots.page.cpu(), :, slots.offset.cpu()] = 0
        assert_same(rest, expected)


def tables(tokens: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    if not rotary_dim:
        return torch.empty(tokens, 1, 0), torch.empty(tokens, 1, 0)
    return rope_table(inverse_frequencies(1e4, rotary_dim), torch.randint(0, 5000, (tokens,)))


def moved(x: Tensor, device: str) -> Tensor:
    """The same view of the same memory on another device."""
    whole = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).to(device)
    return torch.as_strided(whole, x.shape, x.stride(), x.storage_offset())


CHECKS: dict[str, tuple[list[str], Callable[[str, Shape, str], None]]] = {
    "qk_norm_rope_kv": (qk_norm_rope_kv.RUNGS, check_qk_norm_rope_kv),
}
FOLDERS: dict[str, str] = {}
