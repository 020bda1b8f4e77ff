"""Logic, shifts, bit fields, permutations and counts."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.codegen.lookup import lop3_expression
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES

LOGIC = {"and": "&", "or": "|", "xor": "^"}
UNARY = {"brev": "reverse_bits", "popc": "population_count", "clz": "leading_zeros"}


@emits("and", "or", "xor")
def logic(e: Emitter, i: Instruction) -> None:
    destination, a, b = i.operands
    type_name = type_of(i)
    e.assign(destination, f"{e.source(a, type_name)} {LOGIC[i.opcode]} {e.source(b, type_name)}", type_name)


@emits("not", "cnot")
def complement(e: Emitter, i: Instruction) -> None:
    destination, a = i.operands
    type_name = type_of(i)
    value = e.source(a, type_name)
    if i.opcode == "cnot":
        view = TYPES[type_name].view
        e.assign(destination, f"({value} == {e.constant(0, view)}).astype({view})", type_name)
    else:
        e.assign(destination, f"~{value}", type_name)


@emits("shl", "shr")
def shift(e: Emitter, i: Instruction) -> None:
    destination, a, count = i.operands
    type_ = TYPES[type_of(i)]
    constant = e.immediate(count, "u32")
    value = e.source(a, type_.name)
    if constant is not None and constant < type_.bits:
        operator = "<<" if i.opcode == "shl" else ">>"
        e.assign(destination, f"{value} {operator} {e.constant(constant, type_.view)}", type_.name)
    else:
        function = "shift_left" if i.opcode == "shl" else "shift_right"
        e.assign(destination, f"{function}({value}, {e.source(count, 'u32')})", type_.name)


@emits("shf")
def funnel_shift(e: Emitter, i: Instruction) -> None:
    destination, *operands = i.operands
    function = "funnel_left" if i.modifiers[0] == "l" else "funnel_right"
    values = ", ".join(e.source(operand, "u32") for operand in operands)
    e.assign(destination, f"{function}({values}, {'wrap' in i.modifiers})", "u32")


@emits("lop3")
def three_input_logic(e: Emitter, i: Instruction) -> None:
    destination, a, b, c, table, *third = i.operands
    result, _, predicate = destination.partition("|")
    values = [e.source(operand, "b32") for operand in (a, b, c)]
    expression = lop3_expression(int(table, 0), *values)
    if not predicate:
        e.assign(result, expression, "b32")
    else:
        e.line(f"t = {expression}")
        e.assign(result, "t", "b32")
        operator = {"and": "&", "or": "|"}[i.modifiers[0]]
        e.assign(predicate, f"(t != {e.constant(0, 'u32')}) {operator} {e.source(third[0], 'pred')}", "pred")


@emits("brev", "popc", "clz")
def count_bits(e: Emitter, i: Instruction) -> None:
    destination, a = i.operands
    type_name = type_of(i)
    result = type_name if i.opcode == "brev" else "u32"
    e.assign(destination, f"{UNARY[i.opcode]}({e.source(a, f'u{TYPES[type_name].bits}')})", result)


@emits("bfind")
def find_highest_bit(e: Emitter, i: Instruction) -> None:
    destination, a = i.operands
    function = "highest_bit_shift" if "shiftamt" in i.modifiers else "highest_bit"
    e.assign(destination, f"{function}({e.source(a, type_of(i))})", "u32")


@emits("fns")
def find_nth_set_bit(e: Emitter, i: Instruction) -> None:
    values = ", ".join(e.source(operand, "u32") for operand in i.operands[1:])
    e.assign(i.operands[0], f"nth_set_bit({values})", "u32")


@emits("bmsk", "szext")
def mask_or_extend(e: Emitter, i: Instruction) -> None:
    destination, a, b = i.operands
    type_name = type_of(i) if i.opcode == "szext" else "u32"
    function = "extend_from" if i.opcode == "szext" else "bit_mask"
    e.assign(
        destination, f"{function}({e.source(a, type_name)}, {e.source(b, 'u32')}, {'wrap' in i.modifiers})", type_name
    )


@emits("bfe", "bfi")
def bit_field(e: Emitter, i: Instruction) -> None:
    destination, *values, position, length = i.operands
    type_name = type_of(i)
    function = "extract_field" if i.opcode == "bfe" else "insert_field"
    arguments = [e.source(value, type_name) for value in values]
    arguments += [e.source(position, "u32"), e.source(length, "u32")]
    e.assign(destination, f"{function}({', '.join(arguments)})", type_name)


@emits("prmt")
def permute(e: Emitter, i: Instruction) -> None:
    destination, *operands = i.operands
    values = ", ".join(e.source(operand, "u32") for operand in operands)
    mode = next((word for word in i.modifiers if word != "b32"), None)
    e.assign(destination, f"permute_mode({values}, {mode!r})" if mode else f"permute_bytes({values})", "b32")
