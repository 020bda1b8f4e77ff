"""Instruction classes: what the counters call an instruction."""

from __future__ import annotations

from labkit.sim.types import TYPES

SPACES = ("global", "shared", "local", "const", "param")
MEMORY = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
WARP = {"shfl": "shuffle", "vote": "vote", "match": "match", "activemask": "vote", "mma": "mma"}
CONTROL = {"bra": "branch", "brx": "branch", "ret": "exit", "exit": "exit", "trap": "exit", "call": "call"}
SPECIAL = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt")  # the special function unit's
PREDICATES = ("setp", "set", "selp", "slct", "testp")
CONVERSIONS = ("cvt",)
MOVES = ("mov", "cvta", "isspacep", "prmt")


def space_of(modifiers: tuple[str, ...]) -> str:
    """State space of a memory instruction; "generic" where it names none."""
    return next((word.split("::")[0] for word in modifiers if word.split("::")[0] in SPACES), "generic")


def instruction_kind(opcode: str, modifiers: tuple[str, ...]) -> str:
    """Class of an instruction for the counters.

    "load.<space>", "store.<space>", "atomic.<space>"; "shuffle", "vote", "match", "mma"; "branch", "exit", "call",
    "barrier", "warp-barrier", "fence"; "special", "compare", "convert", "move"; "alu.int", "alu.f16", "alu.f32",
    "alu.f64", "alu.pred"; "other".
    """
    for table in (WARP, CONTROL):
        if opcode in table:
            return table[opcode]
    if opcode in MEMORY:
        return f"{MEMORY[opcode]}.{space_of(modifiers)}"
    if opcode in ("bar", "barrier"):
        return "warp-barrier" if "warp" in modifiers else "barrier"
    if opcode in ("membar", "fence"):
        return "fence"
    if opcode in SPECIAL:
        return "special"
    if opcode in PREDICATES:
        return "compare"
    if opcode in CONVERSIONS:
        return "convert"
    if opcode in MOVES:
        return "move"
    return _alu(modifiers)


def _alu(modifiers: tuple[str, ...]) -> str:
    types = [TYPES[word] for word in modifiers if word in TYPES]
    if not types:
        return "other"
    kind = types[-1].kind
    if kind == "f":
        return f"alu.{types[-1].name}"
    return {"h": "alu.f16", "p": "alu.pred"}.get(kind, "alu.int")
