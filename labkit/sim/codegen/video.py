"""The "video" instructions: scalar ones with byte selectors, and packed ones on two or four lanes."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits
from labkit.sim.program import Instruction
from labkit.sim.types import TYPES

SELECTORS = {**{f"b{n}": (8 * n, 8) for n in range(4)}, "h0": (0, 16), "h1": (16, 16)}  # -> first bit, bits
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
WORD = 32


def selected(e: Emitter, operand: str, type_name: str) -> str:
    """ "%r1.b2" as int64."""
    register, _, selector = operand.partition(".")
    negated = register.startswith("-")
    start, bits = SELECTORS[selector] if selector else (0, WORD)
    value = f"extended({e.source(register.lstrip('-'), 'u32')}, {start}, {bits}, {TYPES[type_name].signed})"
    return f"-{value}" if negated else value


def operand_types(i: Instruction) -> list[str]:
    return [word for word in i.modifiers if word in TYPES]


@emits("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vset", "vmad")
def scalar(e: Emitter, i: Instruction) -> None:
    destination, a, b, *c = i.operands
    if "." in destination:
        raise ValueError("the form that merges into a part of the destination")
    result_type, a_type, b_type = operand_types(i) if i.opcode != "vset" else ("u32", *operand_types(i))
    signed = TYPES[result_type].signed
    e.line(f"t = {primary(e, i, selected(e, a, a_type), selected(e, b, b_type))}")
    if i.opcode == "vmad":
        addend = f"extended({e.source(c[0], 'u32')}, 0, {WORD}, {signed})"
        e.line(f"t = t + {addend}{' + 1' if 'po' in i.modifiers else ''}")
        if shift := next((word for word in i.modifiers if word in ("shr7", "shr15")), None):
            e.line(f"t = t >> {e.constant(int(shift[3:]), 'i64')}")
    final = "limited" if "sat" in i.modifiers else "truncated"
    e.line(f"t = {final}(t, {WORD}, {signed})")
    second = next((word for word in i.modifiers if word in ("add", "min", "max")), None)
    if second:
        e.line(f"t = video_operation({second!r}, t, extended({e.source(c[0], 'u32')}, 0, {WORD}, {signed}))")
    e.assign(destination, "t.astype(u32)", "u32")


def primary(e: Emitter, i: Instruction, a: str, b: str) -> str:
    if i.opcode == "vmad":
        return f"{a} * {b}"
    if i.opcode in ("vshl", "vshr"):
        return f"video_shift({a}, {b}, {i.opcode == 'vshl'}, {'wrap' in i.modifiers})"
    if i.opcode.startswith("vset"):
        comparison = next(word for word in i.modifiers if word in COMPARISONS)
        return f"video_compare({comparison!r}, {a}, {b})"
    return f"video_operation({i.opcode.strip('v24')!r}, {a}, {b})"


@emits(*(f"v{name}{lanes}" for name in ("add", "sub", "avrg", "absdiff", "min", "max", "set") for lanes in (2, 4)))
def packed(e: Emitter, i: Instruction) -> None:
    destination, a, b, c = i.operands
    if any("." in operand for operand in i.operands):
        raise ValueError("the form with selectors or a mask")
    lanes = int(i.opcode[-1])
    bits = WORD // lanes
    result_type, a_type, b_type = operand_types(i) if "set" not in i.opcode else ("u32", *operand_types(i))
    signed = TYPES[result_type].signed
    final = "limited" if "sat" in i.modifiers else "truncated"
    e.line("t = []")
    for lane in range(lanes):
        x, y = (
            f"extended({e.source(operand, 'u32')}, {bits * lane}, {bits}, {TYPES[type_name].signed})"
            for operand, type_name in ((a, a_type), (b, b_type))
        )
        e.line(f"t.append({final}({primary(e, i, x, y)}, {bits}, {signed}))")
    result = f"added(t, {e.source(c, 'u32')})" if "add" in i.modifiers else f"joined(t, {bits})"
    e.assign(destination, result, "u32")
