"""setp, set and slct on whole arrays."""

from __future__ import annotations

import numpy as np

from labkit.sim.arith.integer import Array

ORDERED = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def compare_floats(operation: str, a: Array, b: Array) -> Array:
    """The comparisons of floats: plain ones are false and those ending in "u" are true if an operand is NaN."""
    if operation in ORDERED:
        return ORDERED[operation](a, b)
    invalid = np.isnan(a) | np.isnan(b)
    if operation == "nan":
        return invalid
    if operation == "num":
        return ~invalid
    if operation == "ne":
        return (a != b) & ~invalid
    if operation == "neu":
        return a != b
    return ORDERED[operation[:-1]](a, b) | invalid
