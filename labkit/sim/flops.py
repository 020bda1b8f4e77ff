"""Floating-point operations of a launch, added up from what each PTX instruction did."""

from __future__ import annotations

from labkit.sim.counters import Counters

MMA_FLOPS = 64  # of one lane: a warp's m8n8k4 multiplies and adds four times 8 x 8 x 4 pairs, 2048 operations
SINGLE = ("add", "sub", "mul", "div", "ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt")
DOUBLE = ("fma", "mad")
FLOATS = {"f16": 1, "f32": 1, "f64": 1, "f16x2": 2}


def flops_of_instruction(text: str) -> int:
    """FLOP of one thread that executes a PTX instruction, such as ``fma.rn.f32 %f3, %f1, %f2, %f3;``: 2.

    A multiplication with an addition counts two, everything else that computes with floats one (a square root as much
    as an addition, as is the custom); comparisons, conversions, moves and integers none.
    """
    opcode, *modifiers = text.split(maxsplit=1)[0].rstrip(";").split(".")
    if opcode == "mma":
        return MMA_FLOPS
    per_element = 2 if opcode in DOUBLE else int(opcode in SINGLE)
    return per_element * FLOATS.get(modifiers[-1] if modifiers else "", 0)


def flops(counters: Counters) -> int:
    """FLOP of the whole launch."""
    return sum(flops_of_instruction(site.text) * counts.thread_instructions for site, counts in counters.by_site())
