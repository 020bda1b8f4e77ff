"""How the V100's tensor core adds, after the published measurements.

M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh: "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7
(2021), e330. What they found on a V100, and what is computed here:

- the four products of halves are exact; subnormal inputs and results are kept;
- the products and c are added as five operands at once: all are aligned to the largest of them and cut off, toward
  zero, below the 24th significant bit of the largest (no guard bits); the order of the operands does not matter;
- sums are not normalised in between; carries to the left of the largest operand's bits are kept;
- the result is normalised once, in f32, rounding toward zero. Where D is half, it is then rounded to nearest even.

Not measured there, and assumed here: a product counts as normalised when the largest exponent is determined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SIGNIFICAND_BITS = 24
SMALLEST_EXPONENT = -149  # of the last bit of an f32


def add_five(products: list[Array], c: Array) -> Array:
    """p0 + p1 + p2 + p3 + c as a V100 adds them: float32 arrays that broadcast together -> float32."""
    shape = np.broadcast_shapes(*(term.shape for term in products), c.shape)
    terms = [np.broadcast_to(term, shape).astype(np.float64) for term in (*products, c)]
    with np.errstate(invalid="ignore"):
        plain = terms[0] + terms[1] + terms[2] + terms[3] + terms[4]
    special = ~np.isfinite(plain)  # infinities and NaNs follow the usual rules
    exponents = [np.where(term == 0, -10_000, np.frexp(term)[1]) for term in terms]
    last_bit = np.maximum(np.maximum.reduce(exponents) - SIGNIFICAND_BITS, SMALLEST_EXPONENT)
    total = np.zeros(shape)
    for term in terms:
        total += np.trunc(np.ldexp(np.where(special, 0, term), -last_bit))  # integers: these sums are exact
    result = np.ldexp(total, last_bit)
    return np.where(special, plain.astype(np.float32), toward_zero(result))


def toward_zero(value: Array) -> Array:
    """float64 -> float32, rounded toward zero; magnitudes beyond the largest float32 become infinite."""
    nearest = value.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(value)
    cut = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    return np.where(np.abs(value) >= 2.0**128, nearest, cut)
