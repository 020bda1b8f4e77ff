"""Opcodes that exist for several kinds of numbers, each handed to the writer for its kind."""

from __future__ import annotations

from labkit.sim.codegen import floating, half, integer
from labkit.sim.codegen.emitter import Emitter, Handler, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES

NOT_ON_SM_70 = ("NaN", "xorsign", "relu")
INTEGERS: dict[str, Handler] = {
    **dict.fromkeys(("add", "sub", "mul"), integer.integer_arithmetic),
    "mad": integer.integer_multiply_add,
    **dict.fromkeys(("div", "rem"), integer.integer_divide),
    **dict.fromkeys(("min", "max"), integer.integer_extremum),
    **dict.fromkeys(("neg", "abs"), integer.integer_sign),
}
FLOATS: dict[str, Handler] = {
    **dict.fromkeys(("add", "sub", "mul"), floating.float_arithmetic),
    **dict.fromkeys(("fma", "mad"), floating.fused_multiply_add),
    "div": floating.float_divide,
    **dict.fromkeys(("min", "max"), floating.float_extremum),
    **dict.fromkeys(("neg", "abs"), floating.float_sign),
    **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh", "rsqrt"), floating.approximate_function),
}
HALVES: dict[str, Handler] = {
    **dict.fromkeys(("add", "sub", "mul", "fma", "min", "max", "ex2", "tanh"), half.half_operation),
    **dict.fromkeys(("neg", "abs"), half.half_sign),
}


@emits(*(INTEGERS | FLOATS | HALVES))
def arithmetic(e: Emitter, i: Instruction) -> None:
    forbidden = next((word for word in i.modifiers if word in NOT_ON_SM_70), None)
    if forbidden:
        raise ValueError(f"sm_70 has no .{forbidden}")
    family = {"f": FLOATS, "h": HALVES}.get(TYPES[type_of(i)].kind, INTEGERS)
    family[i.opcode](e, i)
