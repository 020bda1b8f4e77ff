"""mov, cvta, isspacep, selp, slct: values go from register to register."""

from __future__ import annotations

from labkit.sim.codegen.emitter import Emitter, emits, type_of
from labkit.sim.program import Instruction
from labkit.sim.registers import vector
from labkit.sim.types import TYPES, UNSIGNED


@emits("mov")
def move(e: Emitter, i: Instruction) -> None:
    destination, source = i.operands
    type_name = type_of(i)
    if destination.startswith("{"):
        unpack(e, vector(destination), source, type_name)
    elif source.startswith("{"):
        parts = vector(source)
        part_type = f"b{TYPES[type_name].bits // len(parts)}"
        values = ", ".join(e.source(part, part_type) for part in parts)
        e.assign(destination, f"pack(({values},), {UNSIGNED[TYPES[type_name].size]})", f"b{TYPES[type_name].bits}")
    else:
        e.assign(destination, e.source(source, type_name), type_name)


def unpack(e: Emitter, destinations: list[str], source: str, type_name: str) -> None:
    bits = TYPES[type_name].bits
    part = bits // len(destinations)
    if source in e.floats and part == 16 and bits == 32:
        unpack_halves(e, destinations, source)
        return
    e.line(f"t = unpack({e.source(source, f'b{bits}')}, {UNSIGNED[part // 8]})")
    for position, destination in enumerate(destinations):
        if e.wanted(destination):
            e.assign(destination, f"t[..., {position}]", f"b{part}")


def unpack_halves(e: Emitter, destinations: list[str], source: str) -> None:
    """Halves that are known as float32 stay so."""
    values = e.half_values(source, "f16x2")
    bits = None if source in e.unwritten else e.temporary(f"split({e.source(source, 'b32')})")
    for position, destination in enumerate(destinations):
        if e.wanted(destination):
            part = None if bits is None else f"{bits}[..., {position}]"
            e.assign_halves(destination, f"{values}[..., {position}]", "f16", part)


@emits("cvta")
def convert_address(e: Emitter, i: Instruction) -> None:
    """Only the shared and local windows have generic addresses of their own; all other spaces are generic already."""
    destination, source = i.operands
    type_name = type_of(i)
    address = e.source(source, type_name)
    space = next(word.split("::")[0] for word in i.modifiers if word not in ("to", type_name))
    if space in ("shared", "local"):
        method = "cvta_to" if "to" in i.modifiers else "cvta"
        address = f"threads.{method}({space!r}, {address})"
    e.assign(destination, address, type_name)


@emits("isspacep")
def is_in_space(e: Emitter, i: Instruction) -> None:
    e.assign(i.operands[0], f"threads.is_space({i.modifiers[0]!r}, {e.source(i.operands[1], 'u64')})", "pred")


@emits("selp")
def select(e: Emitter, i: Instruction) -> None:
    destination, a, b, condition = i.operands
    type_name = type_of(i)
    values = f"{e.source(a, type_name)}, {e.source(b, type_name)}"
    e.assign(destination, f"np.where({e.source(condition, 'pred')}, {values})", type_name)


@emits("slct")
def select_by_sign(e: Emitter, i: Instruction) -> None:
    """a where c >= 0, else b; -0 counts as zero, NaN as negative."""
    destination, a, b, c = i.operands
    type_name, condition_type = [word for word in i.modifiers if word in TYPES]
    condition = e.source(c, condition_type)
    if "ftz" in i.modifiers:
        condition = f"flush({condition})"
    zero = e.constant(0, TYPES[condition_type].view)
    values = f"{e.source(a, type_name)}, {e.source(b, type_name)}"
    e.assign(destination, f"np.where({condition} >= {zero}, {values})", type_name)
