"""Bit manipulation: shifts, fields, permutations, counts."""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.integer import Array

LOW_BYTE = np.uint32(0xFF)


def shift_left(x: Array, count: Array) -> Array:
    """shl: counts beyond the width give zero."""
    return _shift(x, count, np.left_shift, x.dtype.type(0))


def shift_right(x: Array, count: Array) -> Array:
    """shr: counts beyond the width give zero, or copies of the sign for signed numbers."""
    return _shift(x, count, np.right_shift, None if x.dtype.kind == "i" else x.dtype.type(0))


def _shift(x: Array, count: Array, shift: np.ufunc, beyond: np.generic | None) -> Array:
    bits = 8 * x.dtype.itemsize
    clamped = np.minimum(count, np.uint32(bits - 1)).astype(x.dtype)
    shifted = shift(x, clamped)
    return shifted if beyond is None else np.where(count < bits, shifted, beyond)


def funnel_left(low: Array, high: Array, count: Array, wrap: bool) -> Array:
    """shf.l: the upper word of high:low shifted left."""
    pair, count = _pair(low, high, count, wrap)
    return ((pair << count) >> np.uint64(32)).astype(np.uint32)


def funnel_right(low: Array, high: Array, count: Array, wrap: bool) -> Array:
    """shf.r: the lower word of high:low shifted right."""
    pair, count = _pair(low, high, count, wrap)
    return (pair >> count).astype(np.uint32)


def _pair(low: Array, high: Array, count: Array, wrap: bool) -> tuple[Array, Array]:
    limited = count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32)), limited.astype(np.uint64)


def extract_field(x: Array, position: Array, length: Array) -> Array:
    """bfe: a field of bits, filled up with zeros or with its sign (the top bit if it reaches beyond the word)."""
    bits = 8 * x.dtype.itemsize
    start = (position & LOW_BYTE).astype(np.int64)
    width = (length & LOW_BYTE).astype(np.int64)
    unsigned = x.view(f"u{x.dtype.itemsize}").astype(np.uint64)
    field = _shift_64(unsigned, start) & ~_shift_left_64(~np.uint64(0), width)
    if x.dtype.kind == "i":
        sign = _shift_64(unsigned, np.minimum(start + width - 1, bits - 1)) & np.uint64(1)
        field = np.where((sign == 1) & (width > 0), field | _shift_left_64(~np.uint64(0), width), field)
        reaches = (start + width > bits) & (sign == 1) & (width > 0)
        field = np.where(reaches, field | _shift_left_64(~np.uint64(0), np.maximum(bits - start, 0)), field)
    return field.astype(f"u{x.dtype.itemsize}").view(x.dtype)


def insert_field(field: Array, base: Array, position: Array, length: Array) -> Array:
    """bfi: base with some of its bits replaced by the lowest bits of field."""
    start = (position & LOW_BYTE).astype(np.int64)
    width = (length & LOW_BYTE).astype(np.int64)
    mask = _shift_left_64(~_shift_left_64(~np.uint64(0), width), start)
    wide = (base.astype(np.uint64) & ~mask) | (_shift_left_64(field.astype(np.uint64), start) & mask)
    return wide.astype(base.dtype)


def _shift_64(x: Array, count: Array) -> Array:
    return np.where(count < 64, x >> np.minimum(count, 63).astype(np.uint64), np.uint64(0))


def _shift_left_64(x: Array | np.uint64, count: Array) -> Array:
    return np.where(count < 64, x << np.minimum(count, 63).astype(np.uint64), np.uint64(0))


def leading_zeros(x: Array) -> Array:
    """clz: 32 or 64 for zero; uint32."""
    bits = 8 * x.dtype.itemsize
    if bits == 64:
        upper = leading_zeros((x >> np.uint64(32)).astype(np.uint32))
        lower = leading_zeros(x.astype(np.uint32))
        return np.where(upper == 32, upper + lower, upper)
    exponent = np.frexp(x.astype(np.float64))[1]  # the position of the highest bit, counted from 1
    return (bits - exponent).astype(np.uint32)


def highest_bit(x: Array) -> Array:
    """bfind: position of the highest bit that is not the sign; 0xFFFFFFFF if there is none; uint32."""
    return _as_position(x, np.uint32(8 * x.dtype.itemsize - 1) - leading_zeros(_significant(x)))


def highest_bit_shift(x: Array) -> Array:
    """bfind.shiftamt: how far left the highest bit can be shifted; 0xFFFFFFFF if there is none."""
    return _as_position(x, leading_zeros(_significant(x)))


def _significant(x: Array) -> Array:
    """Negative numbers by their zeros: bfind looks for the highest bit that differs from the sign."""
    return (np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x).view(f"u{x.dtype.itemsize}")


def _as_position(x: Array, position: Array) -> Array:
    return np.where(_significant(x) == 0, np.uint32(0xFFFFFFFF), position)


def reverse_bits(x: Array) -> Array:
    """brev: halves of ever smaller groups change places."""
    kind = x.dtype.type
    bits = 8 * x.dtype.itemsize
    every = (1 << bits) - 1
    step = bits // 2
    mask = every
    while step:
        mask ^= (mask << step) & every
        x = ((x >> kind(step)) & kind(mask)) | ((x & kind(mask)) << kind(step))
        step //= 2
    return x


def bit_mask(start: Array, width: Array, wrap: bool) -> Array:
    """bmsk: ones in ``width`` bits from ``start`` on; uint32."""
    first, count = (_within_word(x, wrap) for x in (start, width))
    ones = ~_shift_left_64(~np.uint64(0), count)
    return _shift_left_64(ones, first).astype(np.uint32)


def extend_from(x: Array, width: Array, wrap: bool) -> Array:
    """szext: the low ``width`` bits of x, filled up with zeros or with their sign (int32)."""
    bits = _within_word(width, wrap)
    high = _shift_left_64(~np.uint64(0), bits).astype(np.uint32)
    raw = x.view(np.uint32)
    kept = raw & ~high
    if x.dtype.kind == "i":
        negative = ((raw >> np.maximum(bits - 1, 0).astype(np.uint32)) & np.uint32(1)).astype(bool) & (bits > 0)
        kept = np.where(negative, kept | high, kept)
    return kept.view(x.dtype)


def _within_word(count: Array, wrap: bool) -> Array:
    return (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.int64)


BITS_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], np.uint32)


def population_count(x: Array) -> Array:
    """popc; uint32."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(x).astype(np.uint32)
    return BITS_OF_BYTE[np.ascontiguousarray(x)[..., None].view(np.uint8)].sum(-1, dtype=np.uint32)


def nth_set_bit(mask: Array, base: Array, offset: Array) -> Array:
    """fns: position of the offset-th set bit at or above base (below it for a negative offset); uint32.

    Offset 0 asks for the bit at base itself. 0xFFFFFFFF where there is none.
    """
    positions = np.arange(32, dtype=np.int64)
    is_set = ((mask[..., None] >> positions.astype(np.uint32)) & np.uint32(1)).astype(bool)
    start = base.astype(np.int64)[..., None]
    wanted = offset.view(np.int32).astype(np.int64)[..., None]
    upward = np.cumsum(is_set & (positions >= start), -1)
    downward = np.cumsum((is_set & (positions <= start))[..., ::-1], -1)[..., ::-1]
    hit = np.where(wanted > 0, (upward == wanted) & (positions >= start), (downward == -wanted) & (positions <= start))
    hit = is_set & np.where(wanted == 0, positions == start, hit)
    return np.where(hit.any(-1), hit.argmax(-1), 0xFFFFFFFF).astype(np.uint32)


def permute_bytes(low: Array, high: Array, selector: Array) -> Array:
    """prmt: each of four selector nibbles names a byte of high:low; its top bit asks for copies of the byte's sign."""
    pair = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
    result: Array = np.zeros((1, 1), np.uint64)
    for position in range(4):
        nibble = selector >> np.uint32(4 * position)
        byte = (pair >> ((nibble & np.uint32(7)) << np.uint32(3)).astype(np.uint64)) & np.uint64(0xFF)
        signs = nibble & np.uint32(8)
        if signs.any():
            byte = np.where(signs != 0, (byte >> np.uint64(7)) * np.uint64(0xFF), byte)
        result = result | (byte << np.uint64(8 * position))
    return result.astype(np.uint32)


PERMUTE_MODES = {  # mode -> selector nibbles for the selector's values 0..3, lowest byte first
    "f4e": ("0123", "1234", "2345", "3456"),
    "b4e": ("0765", "1076", "2107", "3210"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("0123", "1123", "2223", "3333"),
    "ecr": ("0000", "0111", "0122", "0123"),
    "rc16": ("0101", "2323", "0101", "2323"),
}


def permute_mode(low: Array, high: Array, selector: Array, mode: str) -> Array:
    """prmt with a mode: a fixed pattern that the lowest two bits of the selector choose."""
    patterns = np.array([int(nibbles[::-1], 16) for nibbles in PERMUTE_MODES[mode]], np.uint32)
    return permute_bytes(low, high, patterns[selector & np.uint32(3)])


def unpack(x: Array, view: str) -> Array:
    """A register as a vector of smaller parts on a new last axis."""
    return x[..., None].view(view)


def pack(parts: tuple[Array, ...], whole: str) -> Array:
    """mov.b32 and mov.b64 from a vector: the first part is the lowest."""
    dtype = np.dtype(whole)
    bits = 8 * dtype.itemsize // len(parts)
    result = parts[0].astype(dtype)
    for position, part in enumerate(parts[1:], 1):
        result = result | (part.astype(dtype) << dtype.type(bits * position))
    return result
