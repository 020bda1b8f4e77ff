"""The "video" instructions: arithmetic on bytes and half-words inside 32-bit registers, scalar and packed.

Everything is computed in int64, where no intermediate result can overflow.
"""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.compare import ORDERED
from labkit.sim.arith.integer import Array, clip_to


def extended(word: Array, start: int, bits: int, signed: bool) -> Array:
    """A byte, half-word or word out of uint32, extended to int64."""
    value = (word.astype(np.int64) >> np.int64(start)) & np.int64((1 << bits) - 1)
    sign = np.int64(1 << (bits - 1))
    return (value ^ sign) - sign if signed else value


def video_operation(operation: str, a: Array, b: Array) -> Array:
    """The operation itself on int64."""
    if operation == "add":
        return a + b
    if operation == "sub":
        return a - b
    if operation == "absdiff":
        return np.abs(a - b)
    if operation == "avrg":
        total = a + b
        return (total + (total >= 0)) >> np.int64(1)
    return np.minimum(a, b) if operation == "min" else np.maximum(a, b)


def video_compare(comparison: str, a: Array, b: Array) -> Array:
    """One where the comparison holds, else zero."""
    return (a != b if comparison == "ne" else ORDERED[comparison](a, b)).astype(np.int64)


def video_shift(a: Array, b: Array, left: bool, wrap: bool) -> Array:
    count = b & np.int64(31) if wrap else np.minimum(b & np.int64(0xFFFFFFFF), np.int64(32))
    return a << count if left else a >> count


def limited(value: Array, bits: int, signed: bool) -> Array:
    """.sat: the nearest number of the result's type."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return clip_to(value, low, high)


def truncated(value: Array, bits: int, signed: bool) -> Array:
    """The low bits of a result, as a number of its type."""
    return extended(value, 0, bits, signed)


def joined(lanes: list[Array], bits: int) -> Array:
    """Lanes of 8 or 16 bits as uint32."""
    word = lanes[0] & np.int64((1 << bits) - 1)
    for position, lane in enumerate(lanes[1:], 1):
        word = word | ((lane & np.int64((1 << bits) - 1)) << np.int64(bits * position))
    return word.astype(np.uint32)


def added(lanes: list[Array], c: Array) -> Array:
    """The packed forms with .add: the sum of all lanes and c."""
    total = c.astype(np.int64)
    for lane in lanes:
        total = total + lane
    return total.astype(np.uint32)
