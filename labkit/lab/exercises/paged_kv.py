"""Checks of chapter 08: a token's row in the pool, keys in INT8, and a rotation by sums and differences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.lab.exercises.running import staged
from labkit.ops.layout import PAGE_SIZE
from labkit.quant.kv import hadamard, quantize_int8

ROW_RULES = {
    "page": "The table has a page for every 64 tokens: table[position // 64].",
    "order": "A page holds head after head, and 64 tokens of each: (page * kv_heads + head) * 64 + position % 64.",
}
INT8_RULES = {
    "scale": "The largest |x| of a row becomes 127: scale = |x|.max / 127, rounded to a half.",
    "stored": "Divide by the scale as it is stored, a half: the numbers are multiplied by that one later.",
    "zeros": "A row of zeros has the scale 0, and 0 / 0 is NaN: keep the scale above 2^-17.",
}
TURN_RULE = (
    "y = x; for d = 1, 2, 4, ... below n: each pair (y[i], y[i + d]) becomes (sum, difference); then y / sqrt(n)."
)


def check_row(row: Callable[[int, int, Sequence[int], int], Any], seed: int | None = None) -> str:
    """Judge ``row(position, head, table, kv_heads)``: which row of values.flatten(0, 2) holds a token's key.

    values: [pages, kv_heads, 64, D]. seed: of the drawn tables. Raises AssertionError with a hint; returns praise.
    """
    draw = random.Random(seed)
    for kv_heads in (1, 2, 4):
        table = draw.sample(range(1, 40), 5)
        for position in (0, 63, 64, 65, draw.randrange(5 * PAGE_SIZE)):
            head = draw.randrange(kv_heads)
            given = row(position, head, table, kv_heads)
            assert isinstance(given, int), f"Return one whole number, not {given!r}."
            page = table[position // PAGE_SIZE]
            first, behind = page * kv_heads * PAGE_SIZE, (page + 1) * kv_heads * PAGE_SIZE
            case = f"token {position}, KV head {head} of {kv_heads}, table {table}"
            assert first <= given < behind, (
                f"{case}: page {page} has the rows {first} to {behind - 1}, you say {given}. "
                f"{staged('Which entry of the table is it?', ROW_RULES['page'])}"
            )
            wanted = first + head * PAGE_SIZE + position % PAGE_SIZE
            assert given == wanted, (
                f"{case}: the page is right, the row is {wanted}, not {given}. "
                f"{staged('In which order do heads and tokens lie in a page?', ROW_RULES['order'])}"
            )
    return "Right: every token is found, in whatever page it lies."


def check_int8(quantize: Callable[[Tensor], Any], seed: int | None = None) -> str:
    """Judge ``quantize(x) -> (q, scale)`` for keys x [T, D]: whole numbers [T, D] from -127 to 127, fp16 [T].

    The keys are ordinary, large, small, and zeros. seed: of the drawn ones. Raises AssertionError with a hint; returns
    praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    x = torch.randn(64, 32, generator=draw)
    loud = x * 1000
    for name, keys in {"ordinary keys": x, "loud keys": loud, "quiet keys": x * 0.01, "zeros": x * 0}.items():
        given = quantize(keys.clone())
        assert isinstance(given, tuple) and len(given) == 2, "Return two values: q, scale."
        _check_int8(name, keys, *(torch.as_tensor(value) for value in given))
    return "Right: 8 bits, and nobody is off by more than half a step."


def _check_int8(name: str, keys: Tensor, q: Tensor, scale: Tensor) -> None:
    assert q.shape == keys.shape and scale.shape == keys.shape[:1], (
        f"{name}: q is {list(q.shape)} and scale {list(scale.shape)}, not {list(keys.shape)} and {[len(keys)]}."
    )
    assert scale.dtype == torch.float16, f"{name}: the scale is {scale.dtype}; a page keeps it as torch.float16."
    finite = bool(q.float().isfinite().all() and scale.isfinite().all())
    assert finite, f"{name}: q or scale is not finite. {staged('What is divided by what?', INT8_RULES['zeros'])}"
    whole = bool((q.float() == q.float().round()).all() and (q.float().abs() <= 127).all())
    assert whole, f"{name}: q has more than whole numbers from -127 to 127."
    _, best = quantize_int8(keys)
    off = (scale.float() - best.float()).abs() > 2e-3 * best.float()
    assert not bool(off.any()), (
        f"{name}: a scale is {float(scale[off][0]):.3g}, not {float(best[off][0]):.3g}. "
        f"{staged('Which number should the largest key of a row become?', INT8_RULES['scale'])}"
    )
    error = (q.float() * scale.float()[:, None] - keys).abs().amax(1)
    worst = float((error / scale.float()).max())
    assert worst <= 0.502 + 127 * 2**-11, (
        f"{name}: an error of {worst:.2f} steps. {staged('Are the numbers rounded to nearest?', INT8_RULES['stored'])}"
    )
    exact = (keys / scale.float()[:, None]).round().clamp(-127, 127)
    assert torch.equal(q.float(), exact), (
        f"{name}: {int((q.float() != exact).sum())} numbers have a nearer one. "
        f"{staged('Which scale will they be multiplied by later?', INT8_RULES['stored'])}"
    )


def check_turn(turn: Callable[[Tensor], Tensor], seed: int | None = None) -> str:
    """Judge ``turn(x)`` for x [n], n a power of two: x H / sqrt(n), H the Hadamard matrix of n rows.

    seed: of the drawn vectors. Raises AssertionError with a hint; returns praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    for n in (2, 4, 64, 256):
        x = torch.randn(n, generator=draw)
        y = turn(x.clone())
        assert isinstance(y, Tensor) and y.shape == x.shape, f"Return a vector of {n} elements."
        kept = float(y.norm() / x.norm())
        assert abs(kept - 1) < 1e-3, (
            f"n = {n}: the vector became {kept:.3g} times as long. "
            f"{staged(f'What does a rotation keep? (sqrt(n) is {math.sqrt(n):g})', TURN_RULE)}"
        )
        assert torch.allclose(y, hadamard(x), atol=1e-4), (
            f"n = {n}: as long as before, but turned elsewhere. "
            f"{staged('Which pairs does each round join?', TURN_RULE)}"
        )
    return "Right: as long as before, and every element has a share of every other."
