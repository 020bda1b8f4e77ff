"""The checks of chapter 06 accept halves made without conversions and bytes that add up, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labkit.lab.exercises.int4_gemv import LIMIT, check_split, check_unpack


def unpack(body: str) -> str:
    return f"__device__ void unpack(unsigned word, half2* out) {{ {body} }}"


MAGIC = unpack("""
    for (int i = 0; i < 4; i++) {
        unsigned bits = word >> 4 * i & 0x000f000f | 0x64006400;
        out[i] = __hsub2(*(half2*)&bits, __float2half2_rn(1024.0f));
    }
""")
IN_PLACE = unpack("""
    for (int i = 0; i < 2; i++) {
        unsigned low = word >> 8 * i & 0x000f000f | 0x64006400, high = word >> 8 * i & 0x00f000f0 | 0x64006400;
        out[2 * i] = __hsub2(*(half2*)&low, __float2half2_rn(1024.0f));
        out[2 * i + 1] = __hfma2(*(half2*)&high, __float2half2_rn(0.0625f), __float2half2_rn(-64.0f));
    }
""")
TO_FLOAT = unpack("""
    for (int i = 0; i < 4; i++) out[i] = __floats2half2_rn(word >> 4 * i & 15, word >> (4 * i + 16) & 15);
""")
TO_HALF = unpack("""
    for (int i = 0; i < 4; i++)
        out[i] = __halves2half2(__int2half_rn(word >> 4 * i & 15), __ushort2half_rn(word >> (4 * i + 16) & 15));
""")
BIT_BY_BIT = unpack("""
    for (int i = 0; i < 8; i++) {
        float q = 0.0f;
        for (int b = 0; b < 4; b++)
            if (word >> (4 * (i / 2 + i % 2 * 4) + b) & 1) q += 1 << b;
        ((half*)out)[i] = __float2half_rn(q);
    }
""")


@pytest.mark.parametrize("source", [MAGIC, IN_PLACE])
def test_magic_numbers_pass(source: str, seed: int) -> None:
    assert check_unpack(source, seed).startswith("Right")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (MAGIC.replace("1024.0f", "0.0f"), "Which half has q in its last bits"),
        (MAGIC.replace("4 * i", "8 * i"), "Input . of a word is"),
        (TO_FLOAT, r"has to convert \(cvt\.rn\.f32\.u32"),
        (TO_HALF, r"has to convert \(cvt\.rn\.f16"),
        (BIT_BY_BIT, r"take \d+ instructions; 26 are enough"),
        (unpack(""), "Input 0 of a word is"),
        (unpack("out[0] = wrod;"), "does not compile"),
    ],
)
def test_wrong_or_dear_halves_get_a_hint(source: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_unpack(source, seed=1)


def test_bytes_that_add_up_pass(seed: int) -> None:
    assert check_split(lambda n: (n >> 16, n >> 8 & 255, n & 255), seed).startswith("Right")
    assert check_split(lambda n: (n // 65536, n // 256 % 256, n % 256), seed).startswith("Right")


def toward_zero(n: int) -> tuple[int, int, int]:
    sign = -1 if n < 0 else 1
    return sign * (abs(n) >> 16), sign * (abs(n) >> 8 & 255), sign * (abs(n) & 255)


@pytest.mark.parametrize(
    ("split", "hint"),
    [
        (lambda n: (n // 65536, 0, n % 256), "256 -> .0, 0, 0., which together are 0"),
        (lambda n: (0, n >> 8, n & 255), "high is a signed byte, middle and low are unsigned ones"),
        (toward_zero, "-1 -> .0, 0, -1.: high is a signed byte"),
        (lambda n: (abs(n) >> 16, abs(n) >> 8 & 255, abs(n) & 255), "-1 -> .0, 0, 1., which together are 1"),
        (lambda n: (min(n >> 16, LIMIT // 65536 - 1), n >> 8 & 255, n & 255), f"{LIMIT} -> .126, 255, 255., which"),
        (lambda n: (n / 65536, 0, 0), "Return three whole numbers"),
        (lambda n: n, "Return three whole numbers"),
    ],
)
def test_bytes_that_do_not_add_up_get_a_hint(split: Callable[[int], Any], hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_split(split)
