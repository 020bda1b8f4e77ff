"""Integer arithmetic. Where sign makes no difference, everything is unsigned: one view less."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.registers import CARRY
from labkit.sim.types import TYPES, PtxType

OPERATORS = {"add": "+", "sub": "-"}


def unsigned(type_: PtxType) -> str:
    return f"u{type_.bits}"


def integer_arithmetic(e: Emitter, i: Instruction) -> None:
    """add, sub, mul"""
    type_ = TYPES[type_of(i)]
    destination, a, b = i.operands
    if "cc" in i.modifiers:
        carry_arithmetic(e, i)
    elif "sat" in i.modifiers:
        function = {"add": "add_saturated", "sub": "subtract_saturated"}[i.opcode]
        e.assign(destination, f"{function}({e.source(a, 's32')}, {e.source(b, 's32')})", "s32")
    elif i.opcode == "mul":
        e.assign(destination, *product(e, i, a, b))
    else:
        plain = unsigned(type_)
        e.assign(destination, f"{e.source(a, plain)} {OPERATORS[i.opcode]} {e.source(b, plain)}", plain)


def product(e: Emitter, i: Instruction, a: str, b: str) -> tuple[str, str]:
    """Expression and type of a * b in one of the three widths."""
    type_ = TYPES[type_of(i)]
    if "wide" in i.modifiers:
        wide = TYPES[f"{type_.kind}{2 * type_.bits}"]
        constant = e.immediate(b, type_.name)
        if constant is None:
            factor = e.source(b, type_.name)
        else:
            sign = constant >> (type_.bits - 1) if type_.signed else 0
            factor = e.constant(constant - (sign << type_.bits), wide.view)
        return f"{e.source(a, type_.name)}.astype({wide.view}) * {factor}", wide.name
    if "hi" in i.modifiers:
        return f"multiply_high({e.source(a, type_.name)}, {e.source(b, type_.name)})", type_.name
    return f"{e.source(a, unsigned(type_))} * {e.source(b, unsigned(type_))}", unsigned(type_)


def integer_multiply_add(e: Emitter, i: Instruction) -> None:
    """mad"""
    destination, a, b, c = i.operands
    if "cc" in i.modifiers:
        carry_arithmetic(e, i)
    elif "sat" in i.modifiers:
        values = ", ".join(e.source(x, "s32") for x in (a, b, c))
        e.assign(destination, f"multiply_add_high_saturated({values})", "s32")
    else:
        expression, type_name = product(e, i, a, b)
        e.assign(destination, f"{expression} + {e.source(c, type_name)}", type_name)


@emits("mul24", "mad24")
def multiply_24_bits(e: Emitter, i: Instruction) -> None:
    destination, a, b, *c = i.operands
    type_name = type_of(i)
    expression = f"multiply_24({e.source(a, type_name)}, {e.source(b, type_name)}, {'hi' in i.modifiers})"
    if "sat" in i.modifiers:
        expression = f"add_saturated({expression}, {e.source(c[0], 's32')})"
    elif c:
        expression = f"{expression} + {e.source(c[0], type_name)}"
    e.assign(destination, expression, type_name)


@emits("addc", "subc", "madc")
def carry_arithmetic(e: Emitter, i: Instruction) -> None:
    """Arithmetic that leaves a carry (.cc) or takes one in (addc, subc, madc); multi-word integers are made of it.

    Hardware subtracts by adding the complement, so a subtraction carries where it borrows nothing. This shows where
    addc reads the carry of a subtraction, as the compiler's 128-bit division does.
    """
    type_name = unsigned(TYPES[type_of(i)])
    operands = list(i.operands[1:])
    if i.opcode in ("mad", "madc"):
        a, b = operands[:2]
        e.line(f"t = {product_part(e, i, a, b)}")
        first, second = "t", e.source(operands[2], type_name)
    else:
        first, second = (e.source(operand, type_name) for operand in operands)
    subtracts = i.opcode in ("sub", "subc")
    carry = e.scope.python_name(CARRY) if i.opcode in ("addc", "subc", "madc") else None
    if subtracts:
        taken = f" - (~{carry}).astype({type_name})" if carry else ""
        result, carries, passes = f"{first} - {second}{taken}", f"{first} > {second}", f"{first} == {second}"
    else:
        taken = f" + {carry}.astype({type_name})" if carry else ""
        result, carries, passes = f"{first} + {second}{taken}", f"s < {first}", f"s == {first}"
    e.line(f"s = {result}")
    if "cc" in i.modifiers:
        incoming = f"{carry} & " if carry else ""
        if carry or subtracts:  # without a carry to take in, a subtraction starts with one
            carries = f"({carries}) | ({incoming}({passes}))"
        e.line(f"{e.scope.python_name(CARRY)} = {carries}")
    e.assign(i.operands[0], "s", type_name)


def product_part(e: Emitter, i: Instruction, a: str, b: str) -> str:
    """The half of a product that mad.lo.cc or mad.hi.cc adds to, as unsigned bits."""
    expression, type_name = product(e, i, a, b)
    return f"({expression}).view({unsigned(TYPES[type_name])})"


def integer_divide(e: Emitter, i: Instruction) -> None:
    """div, rem"""
    destination, a, b = i.operands
    type_name = type_of(i)
    function = "divide" if i.opcode == "div" else "remainder"
    e.assign(destination, f"{function}({e.source(a, type_name)}, {e.source(b, type_name)})", type_name)


def integer_extremum(e: Emitter, i: Instruction) -> None:
    """min, max"""
    type_name = type_of(i)
    values = ", ".join(e.source(operand, type_name) for operand in i.operands[1:])
    e.assign(i.operands[0], f"np.{i.opcode}imum({values})", type_name)


def integer_sign(e: Emitter, i: Instruction) -> None:
    """neg, abs"""
    value = e.source(i.operands[1], type_of(i))
    e.assign(i.operands[0], f"-{value}" if i.opcode == "neg" else f"magnitude({value})", type_of(i))


@emits("sad")
def sum_of_absolute_difference(e: Emitter, i: Instruction) -> None:
    destination, a, b, c = i.operands
    type_name = type_of(i)
    difference = f"absolute_difference({e.source(a, type_name)}, {e.source(b, type_name)})"
    e.assign(destination, f"{difference} + {e.source(c, type_name)}", type_name)


@emits("dp4a", "dp2a")
def dot_product(e: Emitter, i: Instruction) -> None:
    destination, a, b, c = i.operands
    a_type, b_type = i.modifiers[-2:]
    result = "s32" if "s32" in (a_type, b_type) else "u32"
    values = f"{e.source(a, 'u32')}, {e.source(b, 'u32')}, {e.source(c, result)}"
    signs = f"{a_type == 's32'}, {b_type == 's32'}"
    lanes = "" if i.opcode == "dp4a" else f", 2, {2 if 'hi' in i.modifiers else 0}"
    e.assign(destination, f"dot({values}, {signs}{lanes})", result)
