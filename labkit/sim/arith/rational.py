"""float64 operations in every rounding mode by exact rational arithmetic: slow, element by element, and rarely used.

They serve the ``__dadd_rd`` family of intrinsics and the few elements of a float64 fma that come near overflow or
underflow. Everything else runs on whole arrays elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from labkit.sim.arith.integer import Array


def elementwise(operation: Callable[..., float], *operands: Array) -> Array:
    """Apply a function of Python floats to each element of the broadcast operands; float64."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    flat = [np.broadcast_to(operand, shape).reshape(-1).tolist() for operand in operands]
    return np.array([operation(*values) for values in zip(*flat, strict=True)], np.float64).reshape(shape)


def add_f64(a: Array, b: Array, mode: str) -> Array:
    return elementwise(lambda x, y: _sum(x, y, mode), a, b)


def subtract_f64(a: Array, b: Array, mode: str) -> Array:
    return elementwise(lambda x, y: _sum(x, -y, mode), a, b)


def multiply_f64(a: Array, b: Array, mode: str) -> Array:
    return elementwise(lambda x, y: _product(x, y, mode), a, b)


def divide_f64(a: Array, b: Array, mode: str) -> Array:
    return elementwise(lambda x, y: _quotient(x, y, mode), a, b)


def reciprocal_f64(a: Array, mode: str) -> Array:
    return elementwise(lambda x: _quotient(1.0, x, mode), a)


def square_root_f64(a: Array, mode: str) -> Array:
    return elementwise(lambda x: _root(x, mode), a)


def fma_f64_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    return elementwise(lambda x, y, z: _fma(x, y, z, mode), a, b, c)


def _sum(x: float, y: float, mode: str) -> float:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x + y
    return _zero(x, y, mode) if x + y == 0 else rounded(Fraction(x) + Fraction(y), mode)


def _zero(x: float, y: float, mode: str) -> float:
    """The zero that a sum of opposite numbers or of two zeros is: its sign follows from those of the terms."""
    negative = (math.copysign(1, x) < 0, math.copysign(1, y) < 0)
    return -0.0 if all(negative) or (mode == "rm" and any(negative)) else 0.0


def _product(x: float, y: float, mode: str) -> float:
    if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        return x * y
    return rounded(Fraction(x) * Fraction(y), mode)


def _quotient(x: float, y: float, mode: str) -> float:
    if math.isnan(x) or math.isnan(y) or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return math.nan
    sign = math.copysign(1, x) * math.copysign(1, y)
    if y == 0 or math.isinf(x):
        return sign * math.inf
    return sign * 0.0 if x == 0 or math.isinf(y) else rounded(Fraction(x) / Fraction(y), mode)


def _root(x: float, mode: str) -> float:
    if not x > 0 or math.isinf(x):
        return x if x == 0 or x > 0 or math.isnan(x) else math.nan
    nearest = math.sqrt(x)
    exact = Fraction(nearest) ** 2
    if mode in ("rm", "rz") and exact > Fraction(x):
        return math.nextafter(nearest, 0)
    return math.nextafter(nearest, math.inf) if mode == "rp" and exact < Fraction(x) else nearest


def _fma(x: float, y: float, z: float, mode: str) -> float:
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return math.nan if (x == 0 and math.isinf(y)) or (y == 0 and math.isinf(x)) else _infinite_fma(x, y, z)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return _zero(math.copysign(1, x) * math.copysign(1, y), z, mode)
    return rounded(exact, mode)


def _infinite_fma(x: float, y: float, z: float) -> float:
    """With an infinity or a NaN among the operands; a finite product must not overflow on the way."""
    return z if math.isfinite(x) and math.isfinite(y) else x * y + z


def rounded(exact: Fraction, mode: str) -> float:
    """A rational number other than zero as float64 in a rounding mode."""
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    if nearest == 0:
        nearest = math.copysign(0.0, exact)
    if mode == "rn":
        return nearest
    too_high = nearest == math.inf or (math.isfinite(nearest) and Fraction(nearest) > exact)
    too_low = nearest == -math.inf or (math.isfinite(nearest) and Fraction(nearest) < exact)
    if too_high and (mode == "rm" or (mode == "rz" and exact > 0)):
        return math.nextafter(nearest, -math.inf)
    if too_low and (mode == "rp" or (mode == "rz" and exact < 0)):
        return math.nextafter(nearest, math.inf)
    return nearest
