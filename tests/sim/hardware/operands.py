"""Operands of the opcode cases: edge values in all combinations, then random ones; the same bits on every machine.

The stream is NumPy's legacy RandomState, which NumPy promises never to change, seeded by the name of the case.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import numpy as np
from sim.hardware.case import Case, width_of

Bits = np.ndarray  # unsigned, of the operand's width
EDGE_SHARE = 0.65  # of the threads when there are several operands

# exponent bits, mantissa bits
FLOATS = {"f16": (5, 10), "f32": (8, 23), "f64": (11, 52)}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def draw_inputs(case: Case) -> list[Bits]:
    """One array of ``case.threads`` bit patterns for each operand."""
    random = np.random.RandomState(zlib.crc32(case.name.encode()))
    edges = [_edges(operand) for operand in case.inputs]
    share = EDGE_SHARE if len(edges) > 1 else 0.95
    count = min(int(case.threads * share), int(np.prod([len(values) for values in edges])))
    picks = _combinations([len(values) for values in edges], count, random)
    drawn: list[Bits] = []
    for operand, values, pick in zip(case.inputs, edges, picks, strict=True):
        rest = _random(operand, case.threads - count, random, [array[count:] for array in drawn])
        drawn.append(np.concatenate([values[pick], rest]).astype(values.dtype))
    return drawn


def _combinations(lengths: list[int], count: int, random: np.random.RandomState) -> list[np.ndarray]:
    """Indices into the edge lists: all combinations where they fit, else a sample."""
    total = int(np.prod(lengths))
    if total == 0 or not lengths:  # no operands, or one that has only random values
        return [np.zeros(0, np.int64) for _ in lengths]
    flat = np.arange(total) if count == total else random.randint(0, total, count)
    return list(np.unravel_index(flat, lengths))


def _edges(operand: str) -> Bits:
    type_name, _, draw = operand.partition(":")
    dtype = UNSIGNED[width_of(type_name)]
    if draw in DRAWS:
        return np.asarray(DRAWS[draw][0](type_name), dtype)
    if type_name == "f16x2":
        halves = _float_edges("f16")
        pairs = list(itertools.product(halves[::2], halves[1::2]))
        return np.asarray([(high << 16) | low for high, low in pairs], dtype)
    return np.asarray(_float_edges(type_name) if type_name in FLOATS else _integer_edges(type_name), dtype)


def _random(operand: str, count: int, random: np.random.RandomState, earlier: list[Bits]) -> Bits:
    type_name, _, draw = operand.partition(":")
    if draw in DRAWS:
        return DRAWS[draw][1](type_name, count, random, earlier).astype(UNSIGNED[width_of(type_name)])
    if type_name == "f16x2":
        low, high = (random_floats("f16", count, random).astype(np.uint32) for _ in range(2))
        return (high << np.uint32(16)) | low
    return (
        random_floats(type_name, count, random) if type_name in FLOATS else _random_integers(type_name, count, random)
    )


def raw_bits(width: int, count: int, random: np.random.RandomState) -> Bits:
    return np.frombuffer(random.bytes(count * width), UNSIGNED[width]).copy()


def _integer_edges(type_name: str) -> list[int]:
    if type_name == "pred":
        return [0, 1]
    bits = 8 * width_of(type_name)
    top = 1 << (bits - 1)
    values = [0, 1, 2, 3, 7, 8, bits - 1, bits, bits + 1, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
    return sorted({*values, 0x80 % (2 * top), 0xFF, 0x8000 % (2 * top), 0xFFFF % (2 * top), (2 * top - 1) // 3})


def _random_integers(type_name: str, count: int, random: np.random.RandomState) -> Bits:
    """Half full-width, half of a random width, so that small and large meet."""
    width = width_of(type_name)
    bits = raw_bits(width, count, random)
    if type_name == "pred":
        return bits & 1
    shift = np.where(random.randint(0, 2, count) == 1, random.randint(0, 8 * width, count), 0)
    return bits >> shift.astype(bits.dtype)


def _float_edges(type_name: str) -> list[int]:
    """Zeros, subnormals, both ends of the normals, ties of integer rounding, infinities and NaN, with both signs."""
    exponent_bits, mantissa_bits = FLOATS[type_name]
    bias = (1 << (exponent_bits - 1)) - 1
    one, unit = bias << mantissa_bits, 1 << mantissa_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    positive = [0, 1, unit // 2, unit - 1, unit, unit + 1, one - unit, one, one + 1, one - 1, one + unit // 2]
    positive += [one + unit + unit // 4, one + unit, infinity - 1, infinity, one + mantissa_bits * unit + 1]
    sign = 1 << (exponent_bits + mantissa_bits)
    return [*positive, *(sign + value for value in positive), infinity + unit // 2, sign + infinity + 1]


def random_floats(type_name: str, count: int, random: np.random.RandomState, spread: int | None = None) -> Bits:
    """A third any bits, a third of moderate size, a third moderate with few mantissa bits (they make ties)."""
    exponent_bits, mantissa_bits = FLOATS[type_name]
    bits = raw_bits(width_of(type_name), count, random)
    bias = (1 << (exponent_bits - 1)) - 1
    spread = spread if spread is not None else min(28, bias - 2)
    exponent = random.randint(bias - spread, bias + spread + 1, count).astype(bits.dtype)
    mantissa_mask = bits.dtype.type((1 << mantissa_bits) - 1)
    ends = bits.dtype.type(((1 << mantissa_bits) - 1) & ~((1 << (mantissa_bits - 2)) - 1) | 3)
    kind = random.randint(0, 3, count)
    mantissa = np.where(kind == 2, bits & ends, bits & mantissa_mask)
    sign = bits & bits.dtype.type(1 << (exponent_bits + mantissa_bits))
    moderate = sign | (exponent << bits.dtype.type(mantissa_bits)) | mantissa
    return np.where(kind == 0, bits, moderate) if spread > 3 else moderate


def _between(low: int, high: int) -> tuple[Callable[..., list[int]], Callable[..., Bits]]:
    """Integers of a range, ends included."""
    edges = sorted({low, low + 1, (low + high) // 2, high - 1, high})
    return lambda _: edges, lambda _, count, random, __: random.randint(low, high + 1, count)


def _nonzero(type_name: str, count: int, random: np.random.RandomState, _: list[Bits]) -> Bits:
    bits = _random_integers(type_name, count, random)
    return np.where(bits == 0, bits.dtype.type(5), bits)


def _moderate(type_name: str, count: int, random: np.random.RandomState, _: list[Bits]) -> Bits:
    """Finite floats between 1/8 and 8 in size."""
    if type_name == "f16x2":
        low, high = (random_floats("f16", count, random, 3).astype(np.uint32) for _ in range(2))
        return (high << np.uint32(16)) | low
    return random_floats(type_name, count, random, 3)


def _whole(type_name: str, count: int, random: np.random.RandomState, _: list[Bits]) -> Bits:
    """Whole numbers from -8 to 8 as floats: their sums are exact in any order."""
    if type_name == "f16x2":
        pair = random.randint(-8, 9, (count, 2)).astype(np.float16)
        return pair.view(np.uint32).reshape(-1)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_name]
    return random.randint(-8, 9, count).astype(dtype).view(UNSIGNED[width_of(type_name)])


def _cancel(type_name: str, count: int, random: np.random.RandomState, earlier: list[Bits]) -> Bits:
    """Close to minus the product of the two operands before: what is left of a fused sum is the product's tail."""
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_name]
    with np.errstate(all="ignore"):
        product = earlier[-2].view(dtype) * earlier[-1].view(dtype)
    bits = (-product).view(UNSIGNED[width_of(type_name)])
    return bits + random.randint(-1, 2, count).astype(bits.dtype)


def _angle(_: str, count: int, random: np.random.RandomState, __: list[Bits]) -> Bits:
    """f32 of the range in which the manual bounds the error of sine and cosine: two turns."""
    return (random.randint(-(2**20), 2**20, count) * 2.0**-20 * 2 * np.pi).astype(np.float32).view(np.uint32)


def _clamp(_: str, count: int, random: np.random.RandomState, __: list[Bits]) -> Bits:
    """The third operand of shfl: a segment mask in bits 8 to 12 and a clamp in bits 0 to 4."""
    return random.randint(0, 32, count) << 8 | random.randint(0, 32, count)


DRAWS: dict[str, tuple[Callable[..., list[int]], Callable[..., Bits]]] = {
    "byte": _between(0, 255),
    "clamp": (lambda _: [c << 8 | k for c in (0, 16, 24, 28, 30, 31) for k in (0, 31)], _clamp),
    "shift": _between(0, 70),
    "lane": _between(0, 31),
    "bit": _between(0, 1),
    "two": _between(0, 3),
    "third": _between(0, 2),
    "thread": _between(0, 159),
    "nonzero": (lambda type_name: [v for v in _integer_edges(type_name) if v], _nonzero),
    "moderate": (lambda _: [], _moderate),
    "whole": (lambda _: [], _whole),
    "angle": (lambda _: [0, 1, 0x80000000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x00800000], _angle),
    "cancel": (_float_edges, _cancel),
}
