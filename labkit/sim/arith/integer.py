"""Integer arithmetic of PTX on whole arrays, where one NumPy operator is not enough.

Operands are arrays of the instruction's own type (int16 ... uint64), broadcast against each other; results have that
type too. Wrap-around is the rule, as in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WIDER = {np.dtype(f"{kind}{size}"): np.dtype(f"{kind}{2 * size}") for kind in "iu" for size in (1, 2, 4)}


def clip_to(x: Array, low: int, high: int) -> Array:
    """Limit to low..high, both representable in x's type."""
    return np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high))


def add_saturated(a: Array, b: Array) -> Array:
    """add.sat.s32"""
    return _saturated(a.astype(np.int64) + b)


def subtract_saturated(a: Array, b: Array) -> Array:
    """sub.sat.s32"""
    return _saturated(a.astype(np.int64) - b)


def multiply_add_high_saturated(a: Array, b: Array, c: Array) -> Array:
    """mad.hi.sat.s32"""
    return _saturated(multiply_high(a, b).astype(np.int64) + c)


def _saturated(wide: Array) -> Array:
    return clip_to(wide, -(2**31), 2**31 - 1).astype(np.int32)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = WIDER[a.dtype]
        return ((a.astype(wide) * b) >> wide.type(bits)).astype(a.dtype)
    return _multiply_high_64(a, b)


def _multiply_high_64(a: Array, b: Array) -> Array:
    """Schoolbook on 32-bit halves; signed from unsigned by taking off the sign's share."""
    x, y = a.view(np.uint64), b.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "u":
        return high
    zero = np.uint64(0)
    return (high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)).view(np.int64)


def multiply_24(a: Array, b: Array, high: bool) -> Array:
    """mul24: the product of the low 24 bits, its low 32 bits or the 32 bits above the lowest 16."""
    if a.dtype.kind == "i":
        shift = np.int32(8)
        wide = ((a << shift) >> shift).astype(np.int64) * ((b << shift) >> shift)
    else:
        mask = np.uint32(0xFFFFFF)
        wide = (a & mask).astype(np.uint64) * (b & mask)
    return (wide >> wide.dtype.type(16) if high else wide).astype(a.dtype)


def divide(a: Array, b: Array) -> Array:
    """Quotient towards zero; all ones where the divisor is zero, as the hardware's routine gives."""
    return _quotient_and_remainder(a, b)[0]


def remainder(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; all ones where the divisor is zero."""
    return _quotient_and_remainder(a, b)[1]


def _quotient_and_remainder(a: Array, b: Array) -> tuple[Array, Array]:
    kind = a.dtype.type
    if b.size == 1 and (divisor := int(b.flat[0])) > 0 and a.dtype.kind == "u":
        quotient = a // kind(divisor)
        return quotient, a - quotient * kind(divisor)
    if a.dtype.kind == "u":
        quotient = a // np.maximum(b, kind(1))
    else:
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        size_a, size_b = magnitude(a).view(unsigned), np.maximum(magnitude(b).view(unsigned), unsigned.type(1))
        quotient = (size_a // size_b).view(a.dtype)
        quotient = np.where((a < 0) != (b < 0), -quotient, quotient)
    rest = a - quotient * b
    zero = b == 0
    if zero.any():
        ones = ~kind(0)
        return np.where(zero, ones, quotient), np.where(zero, ones, rest)
    return quotient, rest


def magnitude(a: Array) -> Array:
    """abs that keeps the type: the most negative number stays itself."""
    return np.where(a < 0, -a, a)


def absolute_difference(a: Array, b: Array) -> Array:
    """|a - b| for sad."""
    return np.where(a < b, b - a, a - b)


def dot(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool, b_bytes: int = 4, b_first: int = 0) -> Array:
    """dp4a, and dp2a with b_bytes = 2 and b_first = 0 (lo) or 2 (hi): c plus a sum of products of small integers.

    a, b: uint32 with four bytes each (dp2a: a has two 16-bit numbers). c: int32 or uint32.
    """
    a_bits = 32 // b_bytes
    total = c
    for element in range(b_bytes):
        x = _element(a, element * a_bits, a_bits, a_signed)
        y = _element(b, (b_first + element) * 8, 8, b_signed)
        total = total + (x * y).view(c.dtype)
    return total


def _element(word: Array, start: int, bits: int, signed: bool) -> Array:
    """Bits start .. start+bits of each word, extended to 32 bits."""
    left = np.uint32(32 - bits - start)
    right = 32 - bits
    moved = word << left
    return moved.view(np.int32) >> np.int32(right) if signed else (moved >> np.uint32(right)).view(np.int32)
