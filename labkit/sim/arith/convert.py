"""cvt: from any number type to any other."""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.integer import Array
from labkit.sim.arith.rounding import narrow, to_odd, two_sum

ROUND_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def float_to_integer(x: Array, mode: str, view: str) -> Array:
    """float32 or float64 to an integer type: out of range gives the nearest end of the range.

    NaN gives zero, but 0x8000... where source or result has 64 bits (PTX ISA, cvt).
    """
    dtype = np.dtype(view)
    rounded = ROUND_TO_INTEGER[mode](x)
    limits = np.iinfo(dtype)
    low, end = np.float64(limits.min), np.float64(limits.max) + np.float64(dtype.itemsize < 8)
    if rounded.min() >= low and rounded.max() < end:  # false as soon as there is a NaN
        return rounded.astype(dtype)
    inside = (rounded >= low) & (rounded < end)
    converted = np.where(inside, rounded, 0).astype(dtype)
    for_nan = 1 << (8 * dtype.itemsize - 1) if 8 in (x.dtype.itemsize, dtype.itemsize) else 0
    nan_value = np.array(for_nan, f"u{dtype.itemsize}").view(dtype)[()]
    limited = np.where(rounded >= end, dtype.type(limits.max), converted)
    limited = np.where(rounded < low, dtype.type(limits.min), limited)
    return np.where(np.isnan(x), nan_value, limited)


def integer_to_f32(x: Array, mode: str) -> Array:
    """Any integer to float32."""
    if mode == "rn":
        return x.astype(np.float32)
    return narrow(_exact_or_odd(x), mode)


def integer_to_f64(x: Array, mode: str) -> Array:
    """Any integer to float64; only 64-bit integers need rounding."""
    nearest = x.astype(np.float64)
    if mode == "rn" or x.dtype.itemsize < 8:
        return nearest
    error = two_sum(*_halves(x))[1]
    too_high, too_low = error < 0, error > 0
    if mode == "rz":
        too_high, too_low = too_high & (nearest > 0), too_low & (nearest < 0)
    elif mode == "rm":
        too_low = np.zeros_like(too_low)
    else:
        too_high = np.zeros_like(too_high)
    down = np.where(too_high, np.nextafter(nearest, -np.inf), nearest)
    return np.where(too_low, np.nextafter(nearest, np.inf), down)


def integer_to_wide(x: Array) -> Array:
    """Any integer to a float64 that rounds on to a shorter format as the integer itself would."""
    return _exact_or_odd(x)


def _exact_or_odd(x: Array) -> Array:
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    return to_odd(*two_sum(*_halves(x)))


def _halves(x: Array) -> tuple[Array, Array]:
    """A 64-bit integer as the sum of two float64: upper and lower word."""
    upper = (x >> x.dtype.type(32)).astype(np.float64) * np.float64(2.0**32)
    return upper, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
