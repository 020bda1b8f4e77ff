"""Which registers a block takes in and hands on, and which of its instructions nobody needs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from labkit.sim.cfg import RawBlock
from labkit.sim.program import EXIT, Instruction
from labkit.sim.registers import destinations, sources

# What these compute is all they do. Loads and warp operations stay even when unused: they can be wrong.
PURE = frozenset(
    (
        *("mov", "cvt", "cvta", "isspacep", "setp", "set", "selp", "slct", "testp", "copysign"),
        *("add", "addc", "sub", "subc", "mul", "mul24", "mad", "mad24", "madc", "fma", "div", "rem", "sad"),
        *("abs", "neg", "min", "max", "and", "or", "xor", "not", "cnot", "shl", "shr", "shf", "lop3", "prmt"),
        *("bfe", "bfi", "bfind", "bmsk", "szext", "brev", "clz", "popc", "fns", "dp4a", "dp2a"),
        *("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt"),
        *("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
    )
)


@dataclass
class Flow:
    """Registers in order of first use: those a block reads from outside, and those it writes for others."""

    inputs: list[str]
    outputs: list[str]
    kept: list[Instruction]  # without dead code


def analyse(blocks: list[RawBlock], registers: Container[str], keep_all: bool = False) -> list[Flow]:
    """One Flow per block. keep_all: nothing is dead, and all that a block writes is handed on."""
    live_in = _live_in(blocks, registers)
    flows = []
    for block in blocks:
        live_out = _live_out(block, live_in)
        if keep_all:
            live_out.update(_first_uses(block.instructions, registers)[1])
        kept = _without_dead_code(block.instructions, live_out, registers)
        inputs, written = _first_uses(kept, registers)
        result = block.barrier.result if block.barrier else None
        outputs = [name for name in written if name in live_out and name != result]
        flows.append(Flow(inputs, outputs, kept))
    return flows


def _live_in(blocks: list[RawBlock], registers: Container[str]) -> list[set[str]]:
    """The usual backward iteration to a fixed point."""
    uses = [_first_uses(block.instructions, registers) for block in blocks]
    live: list[set[str]] = [set(read) for read, _ in uses]
    changed = True
    while changed:
        changed = False
        for index in range(len(blocks) - 1, -1, -1):
            read, written = uses[index]
            now = set(read) | (_live_out(blocks[index], live) - set(written))
            if now != live[index]:
                live[index] = now
                changed = True
    return live


def _live_out(block: RawBlock, live_in: list[set[str]]) -> set[str]:
    """What the successors read, and what a barrier at the block's end reads; the barrier itself writes its result."""
    live: set[str] = set().union(*(live_in[index] for index in block.successors if index != EXIT))
    if block.barrier is not None:
        live.discard(block.barrier.result or "")
        operands = (block.barrier.number, block.barrier.threads, block.barrier.predicate)
        live.update(operand for operand in operands if isinstance(operand, str))
    return live


def _first_uses(instructions: list[Instruction], registers: Container[str]) -> tuple[list[str], list[str]]:
    """(registers read before they are written, registers written), each once, in order."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for instruction in instructions:
        read.update((name, None) for name in sources(instruction, registers) if name not in written)
        written.update((name, None) for name in destinations(instruction, registers))
    return list(read), list(written)


def _without_dead_code(
    instructions: list[Instruction], live_out: set[str], registers: Container[str]
) -> list[Instruction]:
    live = set(live_out)
    kept = []
    for instruction in reversed(instructions):
        written = destinations(instruction, registers)
        if instruction.opcode in PURE and not live.intersection(written):
            continue
        live.difference_update(written)
        live.update(sources(instruction, registers))
        kept.append(instruction)
    return kept[::-1]
