"""setp and set: comparisons to predicates and to values."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES, UNSIGNED

SIGNED_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OPERATORS = SIGNED_OPERATORS | {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
COMBINATIONS = {"and": "&", "or": "|", "xor": "^"}
FLOAT_OPERATORS = ("eq", "lt", "le", "gt", "ge")  # ordered: NumPy's operators already say no to NaN


def comparison(e: Emitter, i: Instruction, a: str, b: str) -> str:
    """Boolean expression of the comparison of two operands; of halves in pairs with an axis of two at the end."""
    operation, type_ = i.modifiers[0], TYPES[type_of(i)]
    if type_.kind in "fh":
        x, y = (float_operand(e, i, operand) for operand in (a, b))
        if operation in FLOAT_OPERATORS:
            return f"({x} {OPERATORS[operation]} {y})"
        return f"compare_floats({operation!r}, {x}, {y})"
    if operation in ("lo", "ls", "hi", "hs", "eq", "ne"):
        type_ = TYPES[f"u{type_.bits}"]
    return f"({e.source(a, type_.name)} {OPERATORS[operation]} {e.source(b, type_.name)})"


def float_operand(e: Emitter, i: Instruction, operand: str) -> str:
    type_name = type_of(i)
    if type_name in ("f16", "f16x2"):
        value = e.half_values(operand, type_name)
        return f"flush_half({value})" if "ftz" in i.modifiers else value
    value = e.source(operand, type_name)
    return f"flush({value})" if "ftz" in i.modifiers and type_name == "f32" else value


def combined(e: Emitter, i: Instruction, result: str, third: list[str]) -> str:
    """The comparison's result joined with a predicate by and, or, xor."""
    operator = next((COMBINATIONS[word] for word in i.modifiers if word in COMBINATIONS), None)
    return f"{result} {operator} {e.source(third[0], 'pred')}" if operator and third else result


@emits("setp")
def set_predicate(e: Emitter, i: Instruction) -> None:
    destination, a, b, *third = i.operands
    first, _, second = destination.partition("|")
    result = comparison(e, i, a, b)
    if type_of(i) == "f16x2":
        e.line(f"t = {result}")
        e.assign(first, combined(e, i, "t[..., 0]", third), "pred")
        e.assign(second, combined(e, i, "t[..., 1]", third), "pred")
    elif second:
        e.line(f"t = {result}")
        complement = combined(e, i, "~t", third)
        e.line(f"s = {complement}")
        e.assign(first, combined(e, i, "t", third), "pred")
        e.assign(second, "s", "pred")
    else:
        e.assign(first, combined(e, i, result, third), "pred")


@emits("set")
def set_value(e: Emitter, i: Instruction) -> None:
    """All ones, or 1.0, where the comparison holds; zero elsewhere."""
    destination, a, b, *third = i.operands
    result_type, source_type = [word for word in i.modifiers if word in TYPES]
    result = comparison(e, i, a, b)
    if source_type == "f16x2":
        one = 0x3C00 if result_type == "f16x2" else 0xFFFF
        third_pair = [f"{e.source(third[0], 'pred')}[..., None]"] if third else []
        operator = next((COMBINATIONS[word] for word in i.modifiers if word in COMBINATIONS), "")
        condition = f"{result} {operator} {third_pair[0]}" if third_pair else result
        choice = f"np.where({condition}, {e.constant(one, 'u16')}, {e.constant(0, 'u16')})"
        e.assign(destination, f"join({choice})", "b32")
        return
    type_ = TYPES[result_type]
    ones = {"f32": 0x3F800000, "f16": 0x3C00}.get(result_type, (1 << type_.bits) - 1)
    view = UNSIGNED[type_.size]
    choice = f"np.where({combined(e, i, result, third)}, {e.constant(ones, view)}, {e.constant(0, view)})"
    e.assign(destination, choice, f"b{type_.bits}")
