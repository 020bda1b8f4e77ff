"""float32 and float64 arithmetic.

The driver's assembler fuses an unrounded ``mul`` and ``add`` into one fma when it builds for a GPU; the simulator takes
PTX at its word. Only the ``.rn`` forms are bit-comparable with hardware.
"""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES

OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
NAMES = {"add": "add", "sub": "subtract", "mul": "multiply"}
DIRECTED = ("rz", "rm", "rp")


def mode_of(i: Instruction) -> str:
    return next((word for word in i.modifiers if word in DIRECTED), "rn")


def float_sources(e: Emitter, i: Instruction, operands: tuple[str, ...]) -> list[str]:
    """Operands as float32 or float64, flushed if the instruction says .ftz."""
    type_name = type_of(i)
    values = [e.source(operand, type_name) for operand in operands]
    return [f"flush({value})" for value in values] if flushes(i) else values


def flushes(i: Instruction) -> bool:
    return "ftz" in i.modifiers and type_of(i) == "f32"


def assign_float(e: Emitter, i: Instruction, expression: str) -> None:
    """Round off what .ftz and .sat ask for."""
    if flushes(i):
        expression = f"flush({expression})"
    if "sat" in i.modifiers:
        expression = f"saturate({expression})"
    e.assign(i.operands[0], expression, type_of(i))


def float_arithmetic(e: Emitter, i: Instruction) -> None:
    """add, sub, mul"""
    a, b = float_sources(e, i, i.operands[1:])
    mode = mode_of(i)
    if i.opcode == "mul" and flushes(i):
        assign_float(e, i, f"multiply_f32_flushed({a}, {b}, {mode!r})")
    elif mode == "rn":
        assign_float(e, i, f"{a} {OPERATORS[i.opcode]} {b}")
    else:
        assign_float(e, i, f"{NAMES[i.opcode]}_{type_of(i)}({a}, {b}, {mode!r})")


def fused_multiply_add(e: Emitter, i: Instruction) -> None:
    """fma, and mad of floats, its old name"""
    type_ = TYPES[type_of(i)]
    a, b, c = float_sources(e, i, i.operands[1:])
    if flushes(i):
        assign_float(e, i, f"fma_f32_flushed({a}, {b}, {c}, {mode_of(i)!r})")
    elif mode_of(i) != "rn":
        assign_float(e, i, f"fma_{type_.name}_directed({a}, {b}, {c}, {mode_of(i)!r})")
    elif e.scope.exact_fma:
        assign_float(e, i, f"fma_{type_.name}({a}, {b}, {c})")
    else:
        assign_float(e, i, f"{a} * {b} + {c}")


def float_extremum(e: Emitter, i: Instruction) -> None:
    """min, max; which zero wins matters only where no operand is another constant."""
    a, b = float_sources(e, i, i.operands[1:])
    type_ = TYPES[type_of(i)]
    zeros = (None, 0, 1 << (type_.bits - 1))
    nonzero = any(e.immediate(operand, type_.name) not in zeros for operand in i.operands[1:])
    name = f"np.f{i.opcode}" if nonzero else f"{i.opcode}imum"
    assign_float(e, i, f"{name}({a}, {b})")


def float_sign(e: Emitter, i: Instruction) -> None:
    """neg, abs: a change of the sign bit alone, NaN included."""
    (value,) = float_sources(e, i, i.operands[1:])
    e.assign(i.operands[0], f"-{value}" if i.opcode == "neg" else f"np.abs({value})", type_of(i))


def float_divide(e: Emitter, i: Instruction) -> None:
    """div.rn and, within 2 units in the last place of the hardware's, div.approx and div.full."""
    a, b = float_sources(e, i, i.operands[1:])
    mode = mode_of(i)
    if "approx" in i.modifiers:
        assign_float(e, i, f"divide_approximately({a}, {b})")
    elif flushes(i) and "full" not in i.modifiers:
        assign_float(e, i, f"divide_f32_flushed({a}, {b}, {mode!r})")
    else:
        assign_float(e, i, f"{a} / {b}" if mode == "rn" else f"divide_{type_of(i)}({a}, {b}, {mode!r})")


@emits("rcp", "sqrt")
def root_or_reciprocal(e: Emitter, i: Instruction) -> None:
    type_name = type_of(i)
    (x,) = float_sources(e, i, i.operands[1:])
    mode = mode_of(i)
    name = "reciprocal" if i.opcode == "rcp" else "square_root"
    if mode != "rn":
        assign_float(e, i, f"{name}_{type_name}({x}, {mode!r})")
    elif "approx" in i.modifiers and type_name == "f64":
        e.assign(i.operands[0], f"reciprocal_coarse({x})", type_name)
    else:
        one = e.constant(1, TYPES[type_name].view)
        assign_float(e, i, f"{one} / {x}" if i.opcode == "rcp" else f"np.sqrt({x})")


APPROXIMATE = {"ex2": "np.exp2", "lg2": "np.log2", "sin": "np.sin", "cos": "np.cos", "tanh": "np.tanh"}


def approximate_function(e: Emitter, i: Instruction) -> None:
    """ex2, lg2, sin, cos, tanh, rsqrt"""
    type_name = type_of(i)
    (x,) = float_sources(e, i, i.operands[1:])
    if i.opcode != "rsqrt":
        assign_float(e, i, f"{APPROXIMATE[i.opcode]}({x})")
    elif type_name == "f64" and "ftz" in i.modifiers:
        e.assign(i.operands[0], f"reciprocal_square_root_coarse({x})", type_name)
    else:
        assign_float(e, i, f"reciprocal_square_root({x})")


@emits("copysign")
def copy_sign(e: Emitter, i: Instruction) -> None:
    destination, sign, value = i.operands
    type_name = type_of(i)
    e.assign(destination, f"np.copysign({e.source(value, type_name)}, {e.source(sign, type_name)})", type_name)


@emits("testp")
def test_property(e: Emitter, i: Instruction) -> None:
    destination, value = i.operands
    e.assign(destination, f"has_property({e.source(value, type_of(i))}, {i.modifiers[0]!r})", "pred")
