"""Half precision: kept as bits in uint16 (one) or uint32 (two), computed in float32 or float64, rounded once.

A sum or product of two halves rounded to float32 first and to half then is the same as rounded once (float32 has more
than twice the bits); a fused multiply-add needs float64 for that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from labkit.sim.arith.floating import maximum, minimum
from labkit.sim.arith.integer import Array

HALF_TO_FLOAT = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
CANONICAL_NAN = np.uint16(0x7FFF)
SIGN, QUIET = np.uint16(0x8000), np.uint16(0x7FFF)
BITS_OF_SMALLEST_NORMAL = np.uint32(0x38800000)  # float32 bits of 2**-14
BITS_OF_OVERFLOW = np.uint32(0x477FF000)  # of 65520, the first number that rounds to infinity
REBIAS = np.uint32(0x38000000)  # difference of the two formats' exponent offsets, in float32 bits
SMALLEST_NORMAL = np.float32(2.0**-14)
LARGEST_ROUNDED = 65520  # rounds to infinity
SPLITTERS = {np.dtype(np.float32): np.float32(2**13 + 1), np.dtype(np.float64): np.float64(2**42 + 1)}
MANY = 4096  # elements from which on bit operations are faster than a conversion


def to_float(bits: Array) -> Array:
    """Half bits (uint16) as float32."""
    return HALF_TO_FLOAT.take(bits)


def to_half(x: Array, mode: str = "rn") -> Array:
    """float32 or float64 to half bits (uint16); NaN becomes the hardware's 0x7FFF."""
    if mode == "rn" and x.size >= MANY and x.dtype == np.float32:
        return _to_half_by_bits(x)
    half = x.astype(np.float16)
    bits = half.view(np.uint16)
    if mode != "rn":
        bits = _directed(bits, half.astype(x.dtype), x, mode)
    invalid = np.isnan(x)
    return np.where(invalid, CANONICAL_NAN, bits) if invalid.any() else bits


def _to_half_by_bits(x: Array) -> Array:
    """Round on the float32's bits, which NumPy does much faster than a conversion; ties go to even.

    Infinity, NaN and subnormal halves are left to the conversion.
    """
    bits = x.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    if size.max() >= BITS_OF_OVERFLOW or (size - np.uint32(1) < BITS_OF_SMALLEST_NORMAL - np.uint32(1)).any():
        half = x.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(x), CANONICAL_NAN, half)
    odd = (size >> np.uint32(13)) & np.uint32(1)
    size += odd
    size += np.uint32(0xFFF)
    np.maximum(size, REBIAS, out=size)  # zero stays zero
    size -= REBIAS
    size >>= np.uint32(13)
    size |= (bits >> np.uint32(16)) & np.uint32(SIGN)
    return size.astype(np.uint16)


def _directed(bits: Array, nearest: Array, x: Array, mode: str) -> Array:
    """Correct a conversion to nearest by one unit where it went the wrong way."""
    if mode == "rz":
        return bits - (np.abs(nearest) > np.abs(x))
    if mode == "rm":
        wrong, towards_zero = nearest > x, (bits & SIGN) == 0
    else:
        wrong, towards_zero = nearest < x, (bits & SIGN) != 0
    step = np.where(towards_zero, np.uint16(0xFFFF), np.uint16(1))
    return np.where(wrong, bits + step, bits)


def half_fma(a: Array, b: Array, c: Array) -> Array:
    """The product of two halves is exact in float32, the sum in float64 is as good as exact."""
    return np.add(a * b, c, dtype=np.float64)


def round_half(x: Array) -> Array:
    """Round float32 or float64 to half precision once, but keep the result as float32.

    Large arrays by Veltkamp's splitting, which leaves the upper 11 bits, ties to even; it cannot do infinities, NaN
    and subnormal halves.
    """
    if x.size < MANY:
        return _there_and_back(x)
    size = np.abs(x)
    if not size.max() < LARGEST_ROUNDED or ((size < SMALLEST_NORMAL) & (size > 0)).any():
        return _there_and_back(x)
    scaled = x * SPLITTERS[x.dtype]
    return (scaled - (scaled - x)).astype(np.float32, copy=False)


def _there_and_back(x: Array) -> Array:
    return HALF_TO_FLOAT.take(x.astype(np.float16).view(np.uint16))


OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": half_fma,
    "min": minimum,
    "max": maximum,
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def compute(operation: str, sat: bool, ftz: bool, *operands: Array) -> Array:
    """Apply an operation to half bits of shape (..., ) uint16 and round to half bits once."""
    floats = [to_float(bits) for bits in operands]
    if ftz:
        floats = [flush_half(x) for x in floats]
    result = OPERATIONS[operation](*floats)
    if ftz:
        result = flush_half(result)
    if sat:
        result = np.fmin(np.fmax(result, 0), 1) + 0
    return to_half(result)


def flush_half(x: Array) -> Array:
    """.ftz: numbers that are subnormal as halves become zeros of their sign."""
    return x * (np.abs(x) >= SMALLEST_NORMAL)


def compute_pair(operation: str, sat: bool, ftz: bool, *operands: Array) -> Array:
    """The same for two halves in each uint32."""
    return join(compute(operation, sat, ftz, *(split(bits) for bits in operands)))


def split(pair: Array) -> Array:
    """uint32 -> uint16 with the two halves on a new last axis, low first."""
    return pair[..., None].view(np.uint16)


def join(halves: Array) -> Array:
    return np.ascontiguousarray(halves).view(np.uint32)[..., 0]


@lru_cache(maxsize=512)
def table(operation: str, sat: bool, ftz: bool, constants: tuple[int | None, ...]) -> Array:
    """All 65,536 results of an operation in which all operands but one (None) are constants; uint16.

    Quantized weights are unpacked with such operations, and a look-up takes a tenth of the time of computing.
    """
    everything = np.arange(65536, dtype=np.uint16)
    operands = [everything if bits is None else np.array([bits], np.uint16) for bits in constants]
    results = compute(operation, sat, ftz, *operands)
    results.flags.writeable = False
    return results


@lru_cache(maxsize=512)
def table_of_values(operation: str, sat: bool, ftz: bool, constants: tuple[int | None, ...]) -> Array:
    """The same results as float32."""
    values = to_float(table(operation, sat, ftz, constants))
    values.flags.writeable = False
    return values
