"""Checks of chapter 06: nibbles that become halves without a conversion, and numbers split into bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import torch

from labkit.lab.exercises.running import first_finding, simulate, staged

LANES, PER_WORD = 32, 8
MOST = 26  # arithmetic PTX instructions of the harness: with magic numbers 21 to 24 (addresses are 8 of them)
HARNESS = """
extern "C" __global__ void all_words(const unsigned* words, half2* y) {
    half2 out[4];
    unpack(words[threadIdx.x], out);
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = out[i];
}
"""
HEAD = "#include <cuda_fp16.h>\n"
MAGIC = (
    "Which half has q in its last bits, and how much is it too large?",
    "(word & 0x000f000f) | 0x64006400, taken as a half2, is 1024 + q of inputs 0 and 1. Subtract 1024 from both.",
)
BYTES = (
    "What do the lowest eight bits of n hold, also for a negative n? And what is left when they are shifted out?",
    "n & 255, (n >> 8) & 255 and n >> 16: a shift of a negative number rounds down, so only high has a sign.",
)
LIMIT = 2**23 - 1  # what a signed byte and two unsigned ones hold
FROM_INTEGER = re.compile(r"cvt(?:\.r[nzmp])?\.f(?:16|32|64)\.[us]\d+\b")


def check_unpack(source: str, seed: int | None = None) -> str:
    """Judge CUDA text that defines ``__device__ void unpack(unsigned word, half2* out)``: eight nibbles as halves.

    out[i] shall hold inputs 2 i (nibble i of the word) and 2 i + 1 (nibble i + 4). The check wants all of them right,
    no conversion of an integer, and at most MOST arithmetic instructions. seed: of the drawn words.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    draw = torch.Generator().manual_seed(torch.seed() if seed is None else seed)
    nibbles = torch.randint(0, 16, (LANES, PER_WORD), generator=draw)
    words = (nibbles << 4 * torch.arange(PER_WORD)).sum(dim=1).to(torch.int32)
    y = torch.full((LANES, PER_WORD), torch.nan).half()
    result = simulate(HEAD + source + HARNESS, "all_words", 1, LANES, [words, y])
    assert result.ok, first_finding(result)
    _check_halves(y, nibbles)
    _check_instructions(result.counters)
    return "Right: eight halves, and no number was converted."


def _check_halves(y: torch.Tensor, nibbles: torch.Tensor) -> None:
    wanted = nibbles.view(LANES, 2, PER_WORD // 2).transpose(1, 2).flatten(1)
    wrong = (y != wanted).nonzero().tolist()
    assert not wrong, (
        f"Input {wrong[0][1]} of a word is {wanted[tuple(wrong[0])]}, you say {y[tuple(wrong[0])].item():g}."
        f" {staged(*MAGIC)}"
    )


def _check_instructions(counters: Any) -> None:
    sites = [site for site, counts in counters.by_site() if counts.warp_instructions]
    converted = [site.text for site in sites if FROM_INTEGER.match(site.text)]
    assert not converted, f"The halves are right, but the V100 has to convert ({converted[0]}). {staged(*MAGIC)}"
    kinds = {kind: warps for kind, (warps, _) in counters.instructions().items()}
    spent = sum(warps for kind, warps in kinds.items() if kind.startswith("alu") or kind == "convert")
    assert spent <= MOST, f"The halves are right, but take {spent} instructions; {MOST} are enough. {staged(*MAGIC)}"


def check_split(split: Callable[[int], tuple[int, int, int]], seed: int | None = None) -> str:
    """Judge ``split(n) -> (high, middle, low)``: n = 65536 high + 256 middle + low, for whole n, |n| < 2^23.

    high shall fit a signed byte, middle and low unsigned ones. seed: of the drawn numbers.
    Raises AssertionError with a hint; returns a sentence of praise.
    """
    rng = random.Random(seed)
    for n in (0, 1, 255, 256, 65535, 65536, -1, -256, -65536, -LIMIT, LIMIT, *rng.choices(range(-LIMIT, LIMIT), k=99)):
        given = split(n)
        whole = isinstance(given, tuple) and len(given) == 3 and all(isinstance(part, int) for part in given)
        assert whole, "Return three whole numbers: high, middle, low."
        high, middle, low = given
        fits = -128 <= high <= 127 and 0 <= middle <= 255 and 0 <= low <= 255
        assert fits, f"{n} -> {given}: high is a signed byte, middle and low are unsigned ones. {staged(*BYTES)}"
        total = 65536 * high + 256 * middle + low
        assert total == n, f"{n} -> {given}, which together are {total}. {staged(*BYTES)}"
    return "Right: every number comes back from its three bytes."
