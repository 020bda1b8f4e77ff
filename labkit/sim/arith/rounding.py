"""Rounding that NumPy does not offer: towards zero, down and up, and once instead of twice.

The trick throughout: compute in float64 together with the exact error of that, force the last bit to one where
something was lost (*rounding to odd*), and round to the short format afterwards. The forced bit keeps the second
rounding from taking a number for a tie that is none (Boldo and Melquiond, 2008).
"""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.integer import Array

ONE_BIT = np.uint64(1)
F32_TIE = np.uint64(0x10000000)  # float64's bits below float32's last: exactly half of it
F32_LOST = np.uint64(0x1FFFFFFF)
F32_MIN_NORMAL = np.float64(2.0**-126)
SCALE = np.float64(2.0**60)  # lifts float32's subnormal numbers to where they have all their bits
F32_SMALLEST = np.float32(F32_MIN_NORMAL)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, e): s the rounded sum, e its error, a + b = s + e exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def to_odd(total: Array, error: Array) -> Array:
    """float64 total + error rounded to odd: inexact results end in a one."""
    inexact = (error > 0) | (error < 0)
    even = (total.view(np.uint64) & ONE_BIT) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even & np.isfinite(total), np.nextafter(total, towards), total)


def narrow(x: Array, mode: str) -> Array:
    """float64 to float32 with rounding "rn", "rz", "rm" (down) or "rp" (up)."""
    nearest = x.astype(np.float32)
    if mode == "rn":
        return nearest
    infinity, zero = np.float32(np.inf), np.float32(0)
    if mode == "rz":
        return np.where(np.abs(nearest) > np.abs(x), np.nextafter(nearest, zero), nearest)
    if mode == "rm":
        return np.where(nearest > x, np.nextafter(nearest, -infinity), nearest)
    return np.where(nearest < x, np.nextafter(nearest, infinity), nearest)


def add_f32(a: Array, b: Array, mode: str) -> Array:
    """float32 sum in a directed rounding mode."""
    return narrow(_sum_to_odd(a.astype(np.float64), b.astype(np.float64), mode), mode)


def subtract_f32(a: Array, b: Array, mode: str) -> Array:
    return add_f32(a, -b, mode)


def multiply_f32(a: Array, b: Array, mode: str) -> Array:
    """The product of two float32 is exact in float64."""
    return narrow(np.multiply(a, b, dtype=np.float64), mode)


def divide_f32(a: Array, b: Array, mode: str) -> Array:
    """A quotient of float32 is never so near to a float32 that float64 could miss on which side it lies."""
    return narrow(np.divide(a, b, dtype=np.float64), mode)


def square_root_f32(a: Array, mode: str) -> Array:
    return narrow(np.sqrt(a, dtype=np.float64), mode)


def reciprocal_f32(a: Array, mode: str) -> Array:
    return narrow(np.divide(np.float64(1), a, dtype=np.float64), mode)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """fma.rn.f32, exactly rounded.

    The product is exact in float64. Its sum with c is rounded there first, which matters only where it then looks like
    a tie between two float32; such elements, and subnormal results, are rounded to odd in between.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    result = total.astype(np.float32)
    ties = (total.view(np.uint64) & F32_LOST) == F32_TIE
    if not ties.any() and not _has_subnormal(result):
        return result
    return to_odd(*two_sum(product, c.astype(np.float64))).astype(np.float32)


def _has_subnormal(x: Array) -> bool:
    size = np.abs(x)
    return not size.min() >= F32_SMALLEST and bool(((size < F32_SMALLEST) & (size > 0)).any())  # "not": NaN


def fma_f32_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    """fma.rz, fma.rm and fma.rp for float32."""
    return narrow(_sum_to_odd(np.multiply(a, b, dtype=np.float64), c.astype(np.float64), mode), mode)


def _sum_to_odd(a: Array, b: Array, mode: str) -> Array:
    """float64 sum rounded to odd; exactly zero, it is -0 when rounding down, unless both terms are +0."""
    total = to_odd(*two_sum(a, b))
    if mode != "rm":
        return total
    return np.where((total == 0) & (np.signbit(a) | np.signbit(b)), np.float64(-0.0), total)


def multiply_f32_flushed(a: Array, b: Array, mode: str) -> Array:
    """mul.ftz"""
    return _narrow_flushed(np.multiply(a, b, dtype=np.float64), mode)


def divide_f32_flushed(a: Array, b: Array, mode: str) -> Array:
    return _narrow_flushed(np.divide(a, b, dtype=np.float64), mode)


def fma_f32_flushed(a: Array, b: Array, c: Array, mode: str) -> Array:
    return _narrow_flushed(_sum_to_odd(np.multiply(a, b, dtype=np.float64), c.astype(np.float64), mode), mode)


def _narrow_flushed(x: Array, mode: str) -> Array:
    """Flush what is below the normal numbers after rounding to 24 bits, as if the exponent had no limit."""
    result = narrow(x, mode)
    if (np.abs(x) < F32_MIN_NORMAL).any():
        tiny = np.abs(narrow(x * SCALE, mode)) < np.float32(F32_MIN_NORMAL * SCALE)
        return np.where(tiny, np.copysign(np.float32(0), x).astype(np.float32), result)
    return result
