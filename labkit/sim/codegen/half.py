"""Half precision, one number or two in a register."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, type_of
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES

EXPRESSIONS = {  # on float32 values
    "add": "round_half({} + {})",
    "sub": "round_half({} - {})",
    "mul": "round_half({} * {})",
    "fma": "round_half(half_fma({}, {}, {}))",
    "min": "minimum({}, {})",
    "max": "maximum({}, {})",
}
SIGN_BITS = {2: 0x8000, 4: 0x80008000}  # by bytes of the register


def half_operation(e: Emitter, i: Instruction) -> None:
    """f16 and f16x2. With all operands but one constant, the result comes from a table of all halves."""
    type_name = type_of(i)
    operands = i.operands[1:]
    constants = [half_constant(e, operand, type_name == "f16x2") for operand in operands]
    varying = [operand for operand, constant in zip(operands, constants, strict=True) if constant is None]
    plain = i.opcode in EXPRESSIONS and not {"sat", "ftz"}.intersection(i.modifiers)
    if len(operands) > 1 and len(varying) == 1 and varying[0] not in e.unwritten:
        look_up(e, i, varying[0], constants)
    elif plain:
        values = [e.half_values(operand, type_name) for operand in operands]
        e.assign_halves(i.operands[0], EXPRESSIONS[i.opcode].format(*values), type_name)
    else:
        bits = ", ".join(e.source(operand, type_name) for operand in operands)
        function = "compute_pair" if type_name == "f16x2" else "compute"
        e.assign(i.operands[0], f"{function}({flags_of(i)}, {bits})", type_name)


def look_up(e: Emitter, i: Instruction, varying: str, constants: list[int | None]) -> None:
    """The result as a look-up of values and as one of bits; whichever is asked for takes place."""
    type_name = type_of(i)
    which = f"({flags_of(i)}, ({', '.join(str(constant) for constant in constants)}))"
    bits = e.source(varying, type_name)
    if type_name == "f16x2":
        index = e.temporary(f"split({bits})")
        e.assign_halves(
            i.operands[0], f"table_of_values{which}.take({index})", type_name, f"join(table{which}.take({index}))"
        )
    else:
        index = e.temporary(bits)
        e.assign_halves(
            i.operands[0], f"table_of_values{which}.take({index})", type_name, f"table{which}.take({index})"
        )


def flags_of(i: Instruction) -> str:
    return f"{i.opcode!r}, {'sat' in i.modifiers}, {'ftz' in i.modifiers}"


def half_constant(e: Emitter, operand: str, pair: bool) -> int | None:
    """The bits of a constant half, or of two equal ones; None for all else."""
    bits = e.immediate(operand, "b32" if pair else "b16")
    if bits is None or not pair:
        return bits
    return bits & 0xFFFF if bits >> 16 == bits & 0xFFFF else None


def half_sign(e: Emitter, i: Instruction) -> None:
    """neg, abs: a change of the sign bit alone, unless subnormals are flushed."""
    type_ = TYPES[type_of(i)]
    if "ftz" in i.modifiers:
        half_operation(e, i)
        return
    signs = SIGN_BITS[type_.size]
    operator, mask = ("^", signs) if i.opcode == "neg" else ("&", ~signs)
    value = e.source(i.operands[1], type_.name)
    e.assign(i.operands[0], f"{value} {operator} {e.constant(mask, type_.view)}", type_.name)
