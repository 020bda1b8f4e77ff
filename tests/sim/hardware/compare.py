"""How a result of the simulator is held against the hardware's."""

from __future__ import annotations

import numpy as np
from sim.hardware.case import Case, width_of
from sim.hardware.operands import UNSIGNED, Bits

FLOAT_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def split_regions(case: Case, raw: np.ndarray) -> list[Bits]:
    """The output buffer (uint8) as one array of bit patterns for each result."""
    types = list(case.outputs)
    regions = []
    for type_name, start in zip(types, case.offsets(types)[:-1], strict=True):
        width = width_of(type_name)
        regions.append(raw[start : start + width * case.threads].view(UNSIGNED[width]))
    return regions


def join_regions(case: Case, types: list[str], values: list[Bits]) -> np.ndarray:
    """The opposite: one uint8 buffer of all operands, each at its offset."""
    offsets = case.offsets(types)
    raw = np.zeros(max(offsets[-1], 16), np.uint8)
    for array, start in zip(values, offsets[:-1], strict=True):
        raw[start : start + array.nbytes] = array.view(np.uint8)
    return raw


def differs(case: Case, type_name: str, hardware: Bits, simulated: Bits) -> np.ndarray:
    """True where the two differ by more than the case allows; NaNs count as equal."""
    if type_name == "f16x2":
        halves = [differs(case, "f16", hardware.view(np.uint16), simulated.view(np.uint16))]
        return halves[0].reshape(-1, 2).any(axis=1)
    if type_name not in FLOAT_DTYPES:
        return hardware != simulated
    if not case.ulp and not case.absolute:
        ours, theirs = (values.view(FLOAT_DTYPES[type_name]) for values in (simulated, hardware))
        return (hardware != simulated) & ~(np.isnan(ours) & np.isnan(theirs))
    distance, difference = distances(type_name, hardware, simulated)
    return (distance > case.ulp) & ~(difference <= case.absolute)


def distances(type_name: str, hardware: Bits, simulated: Bits) -> tuple[np.ndarray, np.ndarray]:
    """Units in the last place (float64; infinite between NaN and a number) and the absolute difference."""
    ours, theirs = (values.view(FLOAT_DTYPES[type_name]) for values in (simulated, hardware))
    both_nan = np.isnan(ours) & np.isnan(theirs)
    one_nan = np.isnan(ours) ^ np.isnan(theirs)
    ulp = np.abs(_ordered(simulated) - _ordered(hardware))
    with np.errstate(all="ignore"):
        difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    same_infinity = np.isinf(ours) & (ours == theirs)
    difference = np.where(both_nan | same_infinity, 0.0, difference)
    return np.where(both_nan, 0.0, np.where(one_nan, np.inf, ulp)), np.where(one_nan, np.inf, difference)


def _ordered(bits: Bits) -> np.ndarray:
    """Bit patterns as numbers in the order of the floats they stand for."""
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    magnitude = (bits & (sign - bits.dtype.type(1))).astype(np.float64)
    return np.where(bits & sign, -magnitude, magnitude)


def mismatches(case: Case, inputs: list[Bits], hardware: np.ndarray, simulated: np.ndarray) -> list[str]:
    """One line for each of the first threads that differ: operands and both results, in hexadecimal."""
    lines: list[str] = []
    theirs, ours = split_regions(case, hardware), split_regions(case, simulated)
    for number, type_name in enumerate(case.outputs):
        left, right = theirs[number], ours[number]
        if case.unordered:
            left, right = np.sort(left), np.sort(right)
        wrong = np.flatnonzero(differs(case, type_name, left, right))
        for thread in wrong[:5]:
            given = ", ".join(_hexadecimal(array[thread]) for array in inputs)
            lines.append(
                f"{case.name}: thread {thread} ({given}): %r{number} is {_hexadecimal(right[thread])}, "
                f"on hardware {_hexadecimal(left[thread])} ({len(wrong)} of {case.threads} threads differ)"
            )
    return lines


def _hexadecimal(value: np.unsignedinteger) -> str:
    return f"0x{int(value):0{2 * value.itemsize}x}"
