"""Loads, stores, atomics and fences."""

from __future__ import annotations

import re

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.kinds import space_of
from labkit.sim.program import Instruction
from labkit.sim.registers import vector
from labkit.sim.types import TYPES

ADDRESS = re.compile(r"\[([^+\]]+)(?:\+(-?\w+))?\]")
STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")  # accesses that other threads may be watching
SCOPES = {"cta": "cta", "cluster": "gpu", "gpu": "gpu", "gl": "gpu", "sys": "sys"}
ATOMIC_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")


def scope_of(i: Instruction, default: str) -> str:
    return next((SCOPES[word] for word in i.modifiers if word in SCOPES), default)


def address(e: Emitter, operand: str) -> tuple[str, int]:
    """(array of base addresses, constant offset) of "[%rd1+8]" or "[tile+64]"."""
    match = ADDRESS.fullmatch(operand)
    if match is None:
        raise ValueError(f"cannot read the address {operand}")
    base, offset = match[1], int(match[2] or "0", 0)
    variable = e.scope.variables.get(base)
    if base in e.scope.registers:
        width = TYPES[e.scope.registers[base]].bits
        return e.source(base, f"u{width}"), offset
    if variable is not None and variable.space in ("shared", "local", "param"):
        return e.constant(0, "u64"), variable.offset + offset
    return e.source(base, "u64"), offset


@emits("ld", "ldu")
def load(e: Emitter, i: Instruction) -> None:
    destinations = vector(i.operands[0])
    type_ = TYPES[type_of(i)]
    base, offset = address(e, i.operands[1])
    variable = e.scope.variables.get(i.operands[1][1:-1].partition("+")[0])
    if variable is not None and variable.space == "param":
        values = [f"threads.parameter({offset + type_.size * n}, {type_.size})" for n in range(len(destinations))]
    else:
        strong = any(word in i.modifiers for word in STRONG)
        space = "const" if space_of(i.modifiers) == "param" else space_of(i.modifiers)  # by a computed address
        where = f"{space!r}, {base}, {offset}, {type_.size}, {len(destinations)}"
        e.line(f"t = threads.load({where}, {i.site.index}, {strong})")
        values = [f"t[{n}]" for n in range(len(destinations))]
        if "acquire" in i.modifiers:
            e.line(f"threads.fence({scope_of(i, 'gpu')!r}, {i.site.index})")
    for destination, value in zip(destinations, values, strict=True):
        if type_.signed and destination != "_":
            e.assign(destination, f"{value}.view({type_.view})", type_.name)
        else:
            e.assign(destination, value, f"b{type_.bits}")


@emits("st")
def store(e: Emitter, i: Instruction) -> None:
    type_ = TYPES[type_of(i)]
    base, offset = address(e, i.operands[0])
    values = [e.source(operand, f"b{type_.bits}") for operand in vector(i.operands[1])]
    strong = any(word in i.modifiers for word in STRONG)
    if "release" in i.modifiers:
        e.line(f"threads.fence({scope_of(i, 'gpu')!r}, {i.site.index})")
    where = f"{space_of(i.modifiers)!r}, {base}, {offset}, {type_.size}, {len(values)}"
    e.line(f"threads.store({where}, {i.site.index}, {strong}, [{', '.join(values)}])")


@emits("atom", "red")
def atomic(e: Emitter, i: Instruction) -> None:
    """Operands and result are raw bits; the runtime looks at them through the type named."""
    destination, where, *operands = i.operands if i.opcode == "atom" else ("_", *i.operands)
    type_ = TYPES[type_of(i)]
    operation = next(word for word in i.modifiers if word in ATOMIC_OPERATIONS)
    wanted = destination != "_" and e.wanted(destination)
    base, offset = address(e, where)
    values = ", ".join(e.source(operand, f"b{type_.bits}") for operand in operands)
    semantics = next((word for word in i.modifiers if word in SEMANTICS), "relaxed")
    call = (
        f"threads.atomic({space_of(i.modifiers)!r}, {operation!r}, {type_.name!r}, {base}, {offset}, "
        f"{i.site.index}, {wanted}, [{values}], semantics={semantics!r}, scope={scope_of(i, 'gpu')!r})"
    )
    if wanted:
        e.line(f"t = {call}")
        e.assign(destination, "t", f"b{type_.bits}")
    else:
        e.line(call)


@emits("membar", "fence")
def fence(e: Emitter, i: Instruction) -> None:
    e.line(f"threads.fence({scope_of(i, 'gpu')!r}, {i.site.index})")


@emits("prefetch", "prefetchu", "discard", "applypriority", "pmevent")
def hint(e: Emitter, i: Instruction) -> None:
    """Hints about caches, and marks for a profiler, change no value."""
