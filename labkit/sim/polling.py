"""Which loads look at a flag: those in a loop that goes on or ends by what they read.

A volatile word that some thread looks at in this way is a flag: it is read while others write it, on purpose. Any other
volatile word is data, and volatile alone says nothing about when other threads will have written it.
"""

from __future__ import annotations

from labkit.sim.barriers import reachable
from labkit.sim.findings import Line, line_of
from labkit.sim.program import Block, Instruction, Kernel
from labkit.sim.registers import destinations, names_in, sources


def polling_lines(kernel: Kernel) -> frozenset[Line]:
    """Lines whose loads decide whether a loop around them goes on.

    Lines, not instructions: the compiler may take the first look at a flag out of its loop.
    """
    behind = [set[int]().union(*(reachable(kernel, each) for each in block.successors)) for block in kernel.blocks]
    found: set[Line] = set()
    for block in kernel.blocks:
        loads = [each for each in block.instructions if each.opcode == "ld" and "param" not in each.modifiers]
        if loads and block.index in behind[block.index]:
            loop = [kernel.blocks[index] for index in behind[block.index] if block.index in behind[index]]
            found.update(line_of(load.site) for load in loads if _decides(load, loop, kernel))
    return frozenset(found)


def _decides(load: Instruction, loop: list[Block], kernel: Kernel) -> bool:
    """Whether a branch within the loop depends on what the load brings."""
    instructions = [each for block in loop for each in block.instructions]
    dependent, before = set(names_in(load.operands[0], kernel.registers)), 0
    while len(dependent) > before:
        before = len(dependent)
        for each in instructions:
            if dependent.intersection(sources(each, kernel.registers)):
                dependent.update(destinations(each, kernel.registers))
    return any(each.opcode in ("bra", "ret", "exit") and each.predicate in dependent for each in instructions)
