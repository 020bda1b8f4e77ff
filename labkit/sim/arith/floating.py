"""float32 and float64 arithmetic of PTX: fused multiply-add, minimum and maximum, flushing, approximate functions.

Approximate functions are computed by NumPy in the register's own precision: within 2 units in the last place of the
exact result (sin and cos: of their largest value), where the hardware's own error is of that size too. So they agree
with a GPU within a few units, not bit by bit.
"""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.integer import Array
from labkit.sim.arith.rational import fma_f64_directed
from labkit.sim.arith.rounding import to_odd, two_sum

SPLIT = np.float64(2**27 + 1)  # Veltkamp's constant: cuts a float64 into two halves of 26 bits
SAFE_SMALL, SAFE_LARGE = np.float64(2.0**-900), np.float64(2.0**990)


def flush(x: Array) -> Array:
    """.ftz: subnormal float32 numbers become zeros of their sign."""
    return x * (np.abs(x) >= np.float32(2.0**-126)).astype(np.float32)


def saturate(x: Array) -> Array:
    """.sat: limit to 0..1; NaN and -0 become +0."""
    kind = x.dtype.type
    return np.fmin(np.fmax(x, kind(0)), kind(1)) + kind(0)


def minimum(a: Array, b: Array) -> Array:
    """The number if the other is NaN; -0 is less than +0."""
    bits = f"u{a.dtype.itemsize}"
    return np.where(a == b, (a.view(bits) | b.view(bits)).view(a.dtype), np.fmin(a, b))


def maximum(a: Array, b: Array) -> Array:
    bits = f"u{a.dtype.itemsize}"
    return np.where(a == b, (a.view(bits) & b.view(bits)).view(a.dtype), np.fmax(a, b))


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """fma.rn.f64, exactly rounded: the product as an unevaluated sum of two (Dekker), added up by rounding to odd."""
    simple = a * b + c
    high, low = _two_product(a, b)
    carried, rest = two_sum(c, low)
    top, bottom = two_sum(high, carried)
    exact = top + to_odd(*two_sum(bottom, rest))
    size = np.abs(high)
    product_is_zero = (a == 0) | (b == 0)
    safe = (size > SAFE_SMALL) & (size < SAFE_LARGE) & (np.abs(c) < SAFE_LARGE)
    safe &= (np.abs(a) < SAFE_LARGE) & (np.abs(b) < SAFE_LARGE)
    result = np.where(safe & (exact != 0), exact, simple)
    unsafe = ~(safe | product_is_zero)
    if unsafe.any():
        shape = result.shape
        where = np.broadcast_to(unsafe, shape)
        x, y, z = (np.broadcast_to(operand, shape)[where] for operand in (a, b, c))
        result[where] = fma_f64_directed(x, y, z, "rn")
    return result


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _upper_half(x: Array) -> Array:
    scaled = x * SPLIT
    return scaled - (scaled - x)


def reciprocal_square_root(x: Array) -> Array:
    """rsqrt.approx"""
    return x.dtype.type(1) / np.sqrt(x)


def divide_approximately(a: Array, b: Array) -> Array:
    """div.approx.f32: a quotient whose divisor exceeds 2**126 is zero, or NaN if the dividend is infinite."""
    beyond = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    return a / b if not beyond.any() else np.where(beyond, a * np.copysign(np.float32(0), b), a / b)


def reciprocal_coarse(x: Array) -> Array:
    """rcp.approx.ftz.f64: sees the upper word of its operand and makes the upper word of the result; flushes."""
    return _upper_word(_flush_f64(np.float64(1) / _flush_f64(_upper_word(x))))


def reciprocal_square_root_coarse(x: Array) -> Array:
    """rsqrt.approx.ftz.f64"""
    return _upper_word(np.float64(1) / np.sqrt(_flush_f64(_upper_word(x))))


def _flush_f64(x: Array) -> Array:
    return x * (np.abs(x) >= np.float64(2.0**-1022))


def _upper_word(x: Array) -> Array:
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def has_property(x: Array, name: str) -> Array:
    """testp"""
    if name == "finite":
        return np.isfinite(x)
    if name == "infinite":
        return np.isinf(x)
    if name == "number":
        return ~np.isnan(x)
    if name == "notanumber":
        return np.isnan(x)
    subnormal = (np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0)
    return subnormal if name == "subnormal" else np.isfinite(x) & ~subnormal  # zero counts as normal
