"""Operations among the lanes of a warp, and the rest that only the runtime can do."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.registers import vector


@emits("shfl")
def shuffle(e: Emitter, i: Instruction) -> None:
    require_sync(i)
    destination, *operands = i.operands
    value, predicate = destination.split("|") if "|" in destination else (destination, "_")
    wants_predicate = predicate != "_" and e.wanted(predicate)
    arguments = ", ".join(e.source(operand, "b32") for operand in operands)
    e.line(f"t, s = threads.shuffle({i.modifiers[1]!r}, {arguments}, {i.site.index}, {wants_predicate})")
    e.assign(value, "t", "b32")
    if wants_predicate:
        e.assign(predicate, "s", "pred")


@emits("vote")
def vote(e: Emitter, i: Instruction) -> None:
    require_sync(i)
    destination, predicate, mask = i.operands
    mode = i.modifiers[1]
    result = f"threads.vote({mode!r}, {e.source(predicate, 'pred')}, {e.source(mask, 'b32')}, {i.site.index})"
    e.assign(destination, result, "b32" if mode == "ballot" else "pred")


@emits("match")
def match(e: Emitter, i: Instruction) -> None:
    destination, value, mask = i.operands
    lanes, _, predicate = destination.partition("|")
    mode = i.modifiers[0]
    arguments = f"{mode!r}, {e.source(value, type_of(i))}, {e.source(mask, 'b32')}, {i.site.index}"
    e.line(f"t, s = threads.match({arguments})")
    e.assign(lanes, "t", "b32")
    if predicate:
        e.assign(predicate, "s", "pred")


def require_sync(i: Instruction) -> None:
    """sm_70 has no warp operations without .sync any more."""
    if i.modifiers[0] != "sync":
        raise ValueError("sm_70 has only the .sync form")


@emits("activemask")
def active_mask(e: Emitter, i: Instruction) -> None:
    e.assign(i.operands[0], f"threads.activemask({i.site.index})", "b32")


@emits("bar", "barrier")
def warp_barrier(e: Emitter, i: Instruction) -> None:
    """bar.warp.sync; barriers of the whole block end their basic block and are the machine's."""
    e.line(f"threads.sync_warp({e.source(i.operands[0], 'b32')}, {i.site.index})")


@emits("nanosleep")
def nanosleep(e: Emitter, i: Instruction) -> None:
    e.line(f"threads.nanosleep({i.site.index})")


@emits("trap", "brkpt")
def trap(e: Emitter, i: Instruction) -> None:
    e.line(f"threads.trap({i.site.index})")


@emits("vprintf")
def print_formatted(e: Emitter, i: Instruction) -> None:
    e.line(f"threads.print({', '.join(e.source(operand, 'u64') for operand in i.operands)}, {i.site.index})")


@emits("__assertfail")
def assertion_failed(e: Emitter, i: Instruction) -> None:
    message, file, line, function = i.operands[:4]
    texts = [e.source(message, "u64"), e.source(file, "u64"), e.source(line, "u32"), e.source(function, "u64")]
    e.line(f"threads.assert_fail({', '.join(texts)}, {i.site.index})")


def emit_mma(e: Emitter, run: list[Instruction]) -> None:
    """A run of mma.sync.m8n8k4 that do not depend on each other, as one call of the runtime.

    Fragments in registers: a and b two f16x2 each; c and d eight f32 or four f16x2.
    """
    first = run[0]
    if first.modifiers[:3] != ("sync", "aligned", "m8n8k4"):
        raise ValueError("sm_70 has only mma.sync.aligned.m8n8k4")
    layout_a, layout_b, d_type, a_type, b_type, c_type = first.modifiers[3:]
    if (a_type, b_type) != ("f16", "f16") or {d_type, c_type} - {"f16", "f32"}:
        raise ValueError("sm_70 multiplies halves only")
    tiles = []
    for instruction in run:
        a, b, c = (vector(operand) for operand in instruction.operands[1:])
        c_view = "f32" if c_type == "f32" else "b32"
        tiles.append(f"({fragment(e, a, 'b32')}, {fragment(e, b, 'b32')}, {fragment(e, c, c_view)})")
    sites = [instruction.site.index for instruction in run]
    qualifiers = f"{layout_a!r}, {layout_b!r}, {d_type!r}, {c_type!r}"
    e.line(f"t = threads.mma({qualifiers}, [{', '.join(tiles)}], {sites})")
    for tile, instruction in enumerate(run):
        for position, register in enumerate(vector(instruction.operands[0])):
            e.assign(register, f"t[{tile}][{position}]", "f32" if d_type == "f32" else "b32")


def fragment(e: Emitter, registers: list[str], type_name: str) -> str:
    return "(" + ", ".join(e.source(register, type_name) for register in registers) + ")"
