"""Comparisons, selections and conversions."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case, simple

SIGNED = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED = (*SIGNED, "lo", "ls", "hi", "hs")
FLOATING = (*SIGNED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "f32", "f64")


def compare_cases() -> Iterator[Case]:
    for kind in ("b16", "b32", "b64"):
        yield from (_setp(comparison, kind) for comparison in ("eq", "ne"))
    for bits in (16, 32, 64):
        yield from (_setp(comparison, f"u{bits}") for comparison in UNSIGNED)
        yield from (_setp(comparison, f"s{bits}") for comparison in SIGNED)
    for kind in ("f16", "f32", "f64", "ftz.f16", "ftz.f32"):
        yield from (_setp(comparison, kind) for comparison in FLOATING)
    for comparison in FLOATING:
        body = f"setp.{comparison}.f16x2 %r0|%r1, %a, %b;"
        yield Case(f"setp.{comparison}.f16x2", body, ("f16x2", "f16x2"), ("pred", "pred"))
    yield from _combined()
    yield from _set()
    yield from _selections()


def _setp(comparison: str, kind: str) -> Case:
    plain = kind.removeprefix("ftz.")
    body = f"setp.{comparison}.{kind} %r0|%r1, %a, %b;" if plain != "f16" else f"setp.{comparison}.{kind} %r0, %a, %b;"
    return Case(f"setp.{comparison}.{kind}", body, (plain, plain), ("pred", "pred") if plain != "f16" else ("pred",))


def _combined() -> Iterator[Case]:
    for combine in ("and", "or", "xor"):
        for kind, comparison in (("s32", "lt"), ("u64", "ge"), ("f32", "gtu"), ("f64", "neu")):
            name = f"setp.{comparison}.{combine}.{kind}"
            yield Case(name, f"{name} %r0|%r1, %a, %b, %c;", (kind, kind, "pred"), ("pred", "pred"))
            name = f"setp.{comparison}.{combine}.{kind} negated"
            body = f"setp.{comparison}.{combine}.{kind} %r0|%r1, %a, %b, !%c;"
            yield Case(name, body, (kind, kind, "pred"), ("pred", "pred"))


def _set() -> Iterator[Case]:
    for result in ("u32", "s32", "f32"):
        for kind in ("u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"):
            comparison = "eq" if kind[0] == "b" else "lt"
            yield simple(f"set.{comparison}.{result}.{kind}", result, f"{kind} {kind}")
        yield simple(f"set.geu.ftz.{result}.f32", result, "f32 f32")
    for result in ("u32", "s32", "f16"):
        for comparison in ("lt", "neu", "nan"):
            yield simple(f"set.{comparison}.{result}.f16", result, "f16 f16")
    for comparison in FLOATING:
        yield simple(f"set.{comparison}.f16x2.f16x2", "f16x2", "f16x2 f16x2")
    yield simple("set.lt.ftz.f16x2.f16x2", "f16x2", "f16x2 f16x2")
    body = "set.gt.or.u32.s32 %r0, %a, %b, %c;\nset.gt.xor.f32.s32 %r1, %a, %b, !%c;"
    yield Case("set.gt.or.u32.s32", body, ("s32", "s32", "pred"), ("u32", "f32"))


def _selections() -> Iterator[Case]:
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64"):
        yield simple(f"selp.{kind}", kind, f"{kind} {kind} pred")
        yield simple(f"slct.{kind}.s32", kind, f"{kind} {kind} s32")
        yield simple(f"slct.{kind}.f32", kind, f"{kind} {kind} f32")
    yield simple("slct.ftz.u32.f32", "u32", "u32 u32 f32")
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        yield simple(f"testp.{test}.f32", "pred", "f32")
        yield simple(f"testp.{test}.f64", "pred", "f64")
    yield simple("copysign.f32", "f32", "f32 f32")
    yield simple("copysign.f64", "f64", "f64 f64")


def convert_cases() -> Iterator[Case]:
    for source in INTEGERS:
        for target in INTEGERS:
            yield _cvt(f"cvt.{target}.{source}", target, source)
            if not _contains(target, source):  # else .sat is refused
                yield _cvt(f"cvt.sat.{target}.{source}", target, source)
        for target in FLOATS:
            yield from (_cvt(f"cvt.{mode}.{target}.{source}", target, source) for mode in ("rn", "rz", "rm", "rp"))
    for source in FLOATS:
        for target in INTEGERS:
            yield from (_cvt(f"cvt.{mode}.{target}.{source}", target, source) for mode in ("rni", "rzi", "rmi", "rpi"))
        for mode in ("rni", "rzi", "rmi", "rpi"):
            yield _cvt(f"cvt.{mode}.{source}.{source}", source, source)
            yield _cvt(f"cvt.{mode}.sat.{source}.{source}", source, source)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for target in ("u32", "s32", "u64", "f32"):
            yield _cvt(f"cvt.{mode}.ftz.{target}.f32", target, "f32")
    yield from _between_floats()


def _contains(target: str, source: str) -> bool:
    """Whether every value of the source type is one of the target type."""
    spare = int(target[1:]) - int(source[1:])
    return spare >= 0 if target[0] == source[0] else target[0] == "s" and spare > 0


def _between_floats() -> Iterator[Case]:
    for target, source in (("f16", "f32"), ("f16", "f64"), ("f32", "f64")):
        for mode in ("rn", "rz", "rm", "rp"):
            yield _cvt(f"cvt.{mode}.{target}.{source}", target, source)
        yield _cvt(f"cvt.rn.sat.{target}.{source}", target, source)
    for target, source in (("f32", "f16"), ("f64", "f16"), ("f64", "f32")):
        yield _cvt(f"cvt.{target}.{source}", target, source)
        yield _cvt(f"cvt.sat.{target}.{source}", target, source)
    for opcode in ("cvt.ftz.f64.f32", "cvt.rn.ftz.f16.f32", "cvt.rz.ftz.f16.f32", "cvt.rn.ftz.f32.f64"):
        target, source = opcode.split(".")[-2:]
        yield _cvt(opcode, target, source)
    for kind in FLOATS:
        yield _cvt(f"cvt.sat.{kind}.{kind}", kind, kind)
    for kind in ("u8", "s8", "u16", "s32"):
        yield _cvt(f"cvt.rn.sat.f32.{kind}", "f32", kind)
        yield _cvt(f"cvt.rn.sat.f16.{kind}", "f16", kind)


def _cvt(opcode: str, target: str, source: str) -> Case:
    """8-bit results are stored with the whole 16-bit register, which shows how they were extended."""
    result = {"u8": "u16", "s8": "s16"}.get(target, target)
    return Case(opcode, f"{opcode} %r0, %a;", (source,), (result,))
