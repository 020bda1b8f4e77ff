"""Constants and addresses put where they are used: compilers load them into registers first.

A register that one ``mov`` sets, once in the whole kernel, is its constant. So the mask of a shuffle is known before
the blocks are cut, a half2 operation with a constant can become a table look-up, and a shared array's address is no
longer added up at run time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from labkit.sim.inline import FlatBody
from labkit.sim.parse import immediate_bits, split_operands
from labkit.sim.program import Instruction, Variable
from labkit.sim.registers import NAME, destinations
from labkit.sim.types import TYPES


def propagate(flat: FlatBody, symbols: dict[str, Variable]) -> None:
    """Replace constant registers in all source operands. symbols: shared and local variables and kernel parameters."""
    instructions = [item for item in flat.items if isinstance(item, Instruction)]
    writes = Counter(name for item in instructions for name in destinations(item, flat.registers))
    constants: dict[str, str] = {}
    found = -1
    while found < len(constants):  # a constant may lie behind a copy or a sum that comes later in the text
        found = len(constants)
        for item in instructions:
            value = _value(item, constants, symbols, flat.registers)
            if value is not None and writes[item.operands[0]] == 1:
                constants[item.operands[0]] = value
    if constants:
        flat.items[:] = [_substitute(item, constants) for item in flat.items]


def _value(
    item: Instruction, constants: dict[str, str], symbols: dict[str, Variable], registers: dict[str, str]
) -> str | None:
    """The constant that an instruction puts into its register: a number in hexadecimal, or "symbol+offset"."""
    type_name = item.modifiers[0] if item.modifiers else ""
    if item.predicate is not None or item.opcode not in ("mov", "add") or type_name not in TYPES:
        return None
    if TYPES[type_name].size != TYPES[registers.get(item.operands[0], "pred")].size:
        return None  # a vector, or a value that is extended on its way
    operands = [constants.get(operand, operand) for operand in item.operands[1:]]
    if item.opcode == "mov":
        return _symbol(operands[0], symbols) or _number(operands[0], type_name)
    base, offset = _symbol(operands[0], symbols), _number(operands[1], type_name)
    if base is None or offset is None:
        return None
    name, _, start = base.partition("+")
    step = int(offset, 0)
    step -= (step >> (TYPES[type_name].bits - 1)) << TYPES[type_name].bits  # back to a signed number
    return f"{name}+{int(start or 0) + step}"


def _symbol(operand: str, symbols: dict[str, Variable]) -> str | None:
    name = operand.partition("+")[0]
    return operand if name in symbols else None


def _number(operand: str, type_name: str) -> str | None:
    bits = immediate_bits(operand, type_name)
    return None if bits is None else f"{bits:#x}"


def _substitute(item: str | Instruction, constants: dict[str, str]) -> str | Instruction:
    if isinstance(item, str):
        return item
    first = 0 if item.opcode in ("st", "red", "bar", "barrier", "nanosleep", "prefetch", "vprintf") else 1
    if item.opcode == "brx":
        first = len(item.operands)
    operands = item.operands[:first] + tuple(_replace(operand, constants) for operand in item.operands[first:])
    return item if operands == item.operands else replace(item, operands=operands)


def _replace(operand: str, constants: dict[str, str]) -> str:
    if operand in constants:
        return constants[operand]
    if operand.startswith("{"):
        return "{" + ",".join(constants.get(part, part) for part in split_operands(operand[1:-1])) + "}"
    if operand.startswith("["):
        return _replace_address(operand, constants)
    return operand


def _replace_address(operand: str, constants: dict[str, str]) -> str:
    """[%rd1+8] with %rd1 = tile+16 becomes [tile+24]; a base that is a plain number stays in its register."""
    base, _, offset = operand[1:-1].partition("+")
    value = constants.get(base)
    if value is None or not NAME.match(value):
        return operand
    name, _, start = value.partition("+")
    return f"[{name}+{int(start or 0) + int(offset or '0', 0)}]"
