"""cvt: which of the conversions in arith.convert an instruction asks for."""

from __future__ import annotations

import numpy as np

from labkit.sim.codegen.emitter import Emitter, emits
from labkit.sim.program import Instruction
from labkit.sim.types import NUMPY_TYPES, TYPES, PtxType

TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
ROUND_FUNCTIONS = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}
ROUNDINGS = ("rn", "rz", "rm", "rp")


@emits("cvt")
def convert(e: Emitter, i: Instruction) -> None:
    destination, source = i.operands[:2]
    result, given = [TYPES[word] for word in i.modifiers if word in TYPES]
    if len(i.operands) != 2 or "relu" in i.modifiers:
        raise ValueError("sm_70 has no such form")
    value = e.half_values(source, "f16") if given.kind == "h" else e.source(source, given.name)
    if not given.floating and not result.floating:
        expression = integer_to_integer(value, given, result, "sat" in i.modifiers)
    elif not given.floating:
        expression = integer_to_float(i, value, given, result)
    elif not result.floating:
        expression = float_to_integer(i, value, given, result)
    else:
        expression = float_to_float(i, value, given, result)
    e.assign(destination, expression, result.name)


def mode_of(i: Instruction) -> str:
    return next((word for word in i.modifiers if word in ROUNDINGS), "rn")


def integer_to_integer(value: str, given: PtxType, result: PtxType, saturates: bool) -> str:
    if saturates:
        have, want = np.iinfo(NUMPY_TYPES[given.view]), np.iinfo(NUMPY_TYPES[result.view])
        low, high = max(have.min, want.min), min(have.max, want.max)
        if (low, high) != (have.min, have.max):
            value = f"clip_to({value}, {low}, {high})"
    if given.size == result.size:
        return value if given.view == result.view else f"{value}.view({result.view})"
    return f"{value}.astype({result.view})"


def integer_to_float(i: Instruction, value: str, given: PtxType, result: PtxType) -> str:
    mode = mode_of(i)
    if result.kind == "h":
        expression = f"to_half(integer_to_wide({value}), {mode!r})"
    elif mode == "rn":
        expression = f"{value}.astype({result.view})"
    else:
        expression = f"integer_to_{result.name}({value}, {mode!r})"
    if "sat" not in i.modifiers:
        return expression
    return f"to_half(saturate(to_float({expression})))" if result.kind == "h" else f"saturate({expression})"


def as_float(i: Instruction, value: str, given: PtxType) -> str:
    return f"flush({value})" if "ftz" in i.modifiers and given.name == "f32" else value


def float_to_integer(i: Instruction, value: str, given: PtxType, result: PtxType) -> str:
    mode = next(word for word in i.modifiers if word in TO_INTEGER)
    return f"float_to_integer({as_float(i, value, given)}, {mode!r}, {result.view})"


def float_to_float(i: Instruction, value: str, given: PtxType, result: PtxType) -> str:
    if given.name == result.name and given.kind == "f" and not set(i.modifiers) & {*TO_INTEGER, "sat", "ftz"}:
        return value
    value = as_float(i, value, given)
    whole = next((ROUND_FUNCTIONS[word] for word in i.modifiers if word in TO_INTEGER), None)
    if whole:
        value = f"{whole}({value})"
    if "sat" in i.modifiers:
        value = f"saturate({value})"
    if result.kind == "h":
        mode = mode_of(i)
        return f"to_half({value})" if mode == "rn" else f"to_half({value}, {mode!r})"
    if given.name == "f64" and result.name == "f32":
        mode = mode_of(i)
        value = f"{value}.astype(f32)" if mode == "rn" else f"narrow({value}, {mode!r})"
    elif result.name == "f64" and given.name != "f64":
        value = f"{value}.astype(f64)"
    return f"flush({value})" if "ftz" in i.modifiers and result.name == "f32" else value
