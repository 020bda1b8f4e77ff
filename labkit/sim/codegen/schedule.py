"""Bringing mma instructions together: many small matrix products cost NumPy little more than one."""

from __future__ import annotations

from collections.abc import Container

from labkit.sim.program import Instruction
from labkit.sim.registers import destinations, sources


def grouped(instructions: list[Instruction], registers: Container[str]) -> list[list[Instruction]]:
    """The instructions in order, as groups of one; but runs of mma that may be done at once form one group.

    A later mma moves up to the run before it, past instructions that neither make what it reads nor touch what it
    writes. Nothing else moves.
    """
    groups: list[list[Instruction]] = []
    run: list[Instruction] = []  # the open group of mma, the last or an earlier one in ``groups``
    read: set[str] = set()  # by instructions that a further mma would have to pass, and by the run itself
    written: set[str] = set()
    for instruction in instructions:
        reads, writes = sources(instruction, registers), destinations(instruction, registers)
        free = not (written.intersection(reads) or written.intersection(writes) or read.intersection(writes))
        if instruction.opcode == "mma":
            if run and free and instruction.modifiers == run[0].modifiers:
                run.append(instruction)
            else:
                run = [instruction]
                groups.append(run)
                read, written = set(), set()
            written.update(writes)  # what the run reads may be overwritten by it: all of it is read first
            continue
        groups.append([instruction])
        read.update(reads)
        written.update(writes)
    return groups
