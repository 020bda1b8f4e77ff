"""Which registers an instruction writes and reads."""

from __future__ import annotations

import re
from collections.abc import Container

from labkit.sim.parse import split_operands
from labkit.sim.program import Instruction

NAME = re.compile(r"[%$A-Za-z_][\w$~.]*")
CARRY = "%carry"  # condition code: written by add.cc and its like, read by addc, subc and madc
WITHOUT_DESTINATION = frozenset(
    (
        *("st", "red", "bar", "barrier", "membar", "fence", "bra", "ret", "exit", "trap", "brkpt", "nanosleep"),
        *("prefetch", "prefetchu", "discard", "applypriority", "pmevent", "vprintf", "__assertfail"),
    )
)
CARRY_READERS = ("addc", "subc", "madc")


def names_in(operand: str, registers: Container[str]) -> list[str]:
    """The registers that an operand mentions: "%r1", "{%r1,%r2}", "[%rd1+8]", "%p1|%p2", "!%p1", "%r1.b0"."""
    names = [name if name in registers else name.partition(".")[0] for name in NAME.findall(operand)]
    return [name for name in names if name in registers]


def destinations(instruction: Instruction, registers: Container[str]) -> list[str]:
    """Registers that an instruction writes; the result of a barrier's reduction included."""
    operands = instruction.operands
    if instruction.opcode in ("bar", "barrier") and "red" in instruction.modifiers:
        return names_in(operands[0], registers)
    if instruction.opcode in WITHOUT_DESTINATION or not operands:
        return []
    written = names_in(operands[0], registers)
    return [*written, CARRY] if "cc" in instruction.modifiers else written


def sources(instruction: Instruction, registers: Container[str]) -> list[str]:
    """Registers that an instruction reads; under a predicate also the old values of those it writes."""
    written = destinations(instruction, registers)
    operands = instruction.operands if not written else instruction.operands[1:]
    if instruction.opcode not in WITHOUT_DESTINATION and not written:
        operands = instruction.operands[1:]  # a sink "_" or a result that is no register
    read = [name for operand in operands for name in names_in(operand, registers)]
    if instruction.opcode in CARRY_READERS:
        read.append(CARRY)
    if instruction.predicate is not None:
        read.append(instruction.predicate)
        if instruction.opcode not in ("bra", "ret", "exit"):
            read.extend(written)
    return read


def vector(operand: str) -> list[str]:
    """The elements of "{%r1,%r2}"; a plain operand is a vector of one."""
    return split_operands(operand[1:-1]) if operand.startswith("{") else [operand]
