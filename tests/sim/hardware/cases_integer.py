"""Integer arithmetic, bit operations and carries."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case, simple

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")


def integer_cases() -> Iterator[Case]:
    yield from _arithmetic()
    yield from _multiplication()
    yield from _carries()


def bit_cases() -> Iterator[Case]:
    yield from _logic()
    yield from _shifts()
    yield from _fields()
    yield from _permutations()


def video_cases() -> Iterator[Case]:
    """The scalar and packed "video" instructions; the packed ones are what __vadd4 and its kin stand for."""
    for opcode in ("vadd", "vsub", "vabsdiff", "vmin", "vmax"):
        yield simple(f"{opcode}.s32.u32.s32", "s32", "u32 s32")
        yield simple(f"{opcode}.s32.s32.s32.sat", "s32", "s32 s32")
        yield Case(
            f"{opcode} bytes", f"{opcode}.u32.u32.s32.add %r0, %a.b1, %b.h1, %c;", ("u32", "s32", "u32"), ("u32",)
        )
    for opcode in ("vshl.u32.u32.u32.clamp", "vshl.u32.u32.u32.wrap", "vshr.s32.s32.u32.wrap"):
        yield simple(opcode, "u32", "u32 u32")
    yield simple("vmad.u32.u32.u32", "u32", "u32 u32 u32")
    yield simple("vset.u32.s32.lt", "u32", "u32 s32")
    for opcode in ("vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4", "vmax4", "vadd2", "vsub2", "vmin2", "vmax2"):
        for kind in ("u32", "s32"):
            yield simple(f"{opcode}.{kind}.{kind}.{kind}", kind, f"{kind} {kind} {kind}")
    for opcode in ("vset4.u32.u32.lt", "vset4.s32.s32.ge", "vset2.u32.u32.eq"):
        yield simple(opcode, "u32", "u32 u32 u32")


def _arithmetic() -> Iterator[Case]:
    for kind in INTEGERS:
        for opcode in ("add", "sub", "min", "max"):
            yield simple(f"{opcode}.{kind}", kind, f"{kind} {kind}")
        for opcode in ("div", "rem"):  # by zero the result is unspecified
            yield simple(f"{opcode}.{kind}", kind, f"{kind} {kind}:nonzero")
        yield simple(f"sad.{kind}", kind, f"{kind} {kind} {kind}")
    for kind in ("s16", "s32", "s64"):
        yield simple(f"abs.{kind}", kind, kind)
        yield simple(f"neg.{kind}", kind, kind)
    yield simple("add.sat.s32", "s32", "s32 s32")
    yield simple("sub.sat.s32", "s32", "s32 s32")
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            result = "s32" if "s32" in (a, b) else "u32"
            yield simple(f"dp4a.{a}.{b}", result, f"{a} {b} {result}")
            for half in ("lo", "hi"):
                yield simple(f"dp2a.{half}.{a}.{b}", result, f"{a} {b} {result}")


def _multiplication() -> Iterator[Case]:
    for kind in INTEGERS:
        bits = int(kind[1:])
        for part in ("lo", "hi"):
            yield simple(f"mul.{part}.{kind}", kind, f"{kind} {kind}")
            yield simple(f"mad.{part}.{kind}", kind, f"{kind} {kind} {kind}")
        if bits < 64:
            wide = f"{kind[0]}{2 * bits}"
            yield simple(f"mul.wide.{kind}", wide, f"{kind} {kind}")
            yield simple(f"mad.wide.{kind}", wide, f"{kind} {kind} {wide}")
    yield simple("mad.hi.sat.s32", "s32", "s32 s32 s32")
    for kind in ("u32", "s32"):
        for part in ("lo", "hi"):
            yield simple(f"mul24.{part}.{kind}", kind, f"{kind} {kind}")
            yield simple(f"mad24.{part}.{kind}", kind, f"{kind} {kind} {kind}")
    yield simple("mad24.hi.sat.s32", "s32", "s32 s32 s32")


def _carries() -> Iterator[Case]:
    """Two instructions that hand a carry on, and a third that shows the flag."""
    for kind in ("u32", "s32", "u64", "s64"):
        for name, first, second in (
            ("add", "add.cc", "addc.cc"),
            ("sub", "sub.cc", "subc.cc"),
        ):
            end = f"{second.removesuffix('.cc')}.{kind} %r2, 0, 0;"
            body = f"{first}.{kind} %r0, %a, %b;\n{second}.{kind} %r1, %c, %d;\n{end}"
            yield Case(f"{name}.cc chain {kind}", body, (kind,) * 4, (kind,) * 3)
    for kind in ("u32", "s32", "u64", "s64"):
        for first, second in (("add", "sub"), ("sub", "add")):  # one flag for both: a borrow is a missing carry
            body = f"{first}.cc.{kind} %r0, %a, %b;\n{second}c.cc.{kind} %r1, %c, %d;\n{second}c.{kind} %r2, 0, 0;"
            yield Case(f"{first}.cc {second}c chain {kind}", body, (kind,) * 4, (kind,) * 3)
    for kind in ("u32", "s32", "u64", "s64"):
        for part in ("lo", "hi"):
            body = (
                f"mad.{part}.cc.{kind} %r0, %a, %b, %c;\nmadc.{part}.cc.{kind} %r1, %a, %c, %b;\n"
                f"madc.hi.{kind} %r2, %b, %c, %a;"
            )
            yield Case(f"mad.{part}.cc chain {kind}", body, (kind,) * 3, (kind,) * 3)


def _logic() -> Iterator[Case]:
    for kind in (*BITS, "pred"):
        for opcode in ("and", "or", "xor"):
            yield simple(f"{opcode}.{kind}", kind, f"{kind} {kind}")
        yield simple(f"not.{kind}", kind, kind)
        if kind != "pred":
            yield simple(f"cnot.{kind}", kind, kind)
    for start in range(0, 256, 64):  # every look-up table
        body = "\n".join(f"lop3.b32 %r{i}, %a, %b, %c, {start + i};" for i in range(64))
        yield Case(f"lop3.b32 tables from {start}", body, ("b32",) * 3, ("b32",) * 64, threads=32, blocks=1)
    for combine in ("and", "or"):
        body = f"lop3.{combine}.b32 %r0|%r1, %a, %b, %c, 0x80, %d;"
        yield Case(f"lop3.{combine}.b32", body, ("b32", "b32", "b32", "pred"), ("b32", "pred"))


def _shifts() -> Iterator[Case]:
    for bits in (16, 32, 64):
        for opcode in (f"shl.b{bits}", f"shr.b{bits}", f"shr.u{bits}", f"shr.s{bits}"):
            yield simple(opcode, f"b{bits}", f"b{bits} u32:shift")
            yield Case(f"{opcode} any amount", f"{opcode} %r0, %a, %b;", (f"b{bits}", "u32"), (f"b{bits}",))
    for side in ("l", "r"):
        for mode in ("clamp", "wrap"):
            yield simple(f"shf.{side}.{mode}.b32", "b32", "b32 b32 u32:shift")


def _fields() -> Iterator[Case]:
    for bits in (32, 64):
        for opcode in ("popc", "clz"):
            yield simple(f"{opcode}.b{bits}", "u32", f"b{bits}")
        yield simple(f"brev.b{bits}", f"b{bits}", f"b{bits}")
        yield simple(f"bfi.b{bits}", f"b{bits}", f"b{bits} b{bits} u32:shift u32:shift")
        any_field = (f"b{bits}", f"b{bits}", "u32:byte", "u32:byte")
        yield Case(f"bfi.b{bits} any field", f"bfi.b{bits} %r0, %a, %b, %c, %d;", any_field, (f"b{bits}",))
        for sign in ("u", "s"):
            kind = f"{sign}{bits}"
            yield simple(f"bfind.{kind}", "u32", kind)
            yield simple(f"bfind.shiftamt.{kind}", "u32", kind)
            yield simple(f"bfe.{kind}", kind, f"{kind} u32:shift u32:shift")
            body = f"bfe.{kind} %r0, %a, %b, %c;"
            yield Case(f"bfe.{kind} any field", body, (kind, "u32:byte", "u32:byte"), (kind,))
    yield simple("fns.b32", "b32", "b32 u32:lane s32:lane")
    body = "neg.s32 %t0, %c;\nfns.b32 %r0, %a, %b, %t0;"
    yield Case("fns.b32 backwards", body, ("b32", "u32:lane", "s32:lane"), ("b32",))
    for mode in ("clamp", "wrap"):
        yield simple(f"bmsk.{mode}.b32", "b32", "u32:shift u32:shift")
        yield simple(f"szext.{mode}.u32", "u32", "u32 u32:shift")
        yield simple(f"szext.{mode}.s32", "s32", "s32 u32:shift")


def _permutations() -> Iterator[Case]:
    yield simple("prmt.b32", "b32", "b32 b32 b32")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield simple(f"prmt.b32.{mode}", "b32", "b32 b32 b32")
    pack = "mov.b32 %r0, {%a, %b};\nmov.b32 {%r1, %r2}, %c;"
    yield Case("mov.b32 halves", pack, ("b16", "b16", "b32"), ("b32", "b16", "b16"))
    pack = "mov.b64 %r0, {%a, %b};\nmov.b64 {%r1, %r2}, %c;"
    yield Case("mov.b64 words", pack, ("b32", "b32", "b64"), ("b64", "b32", "b32"))
    pack = "mov.b64 %r0, {%a, %b, %a, %b};\nmov.b64 {%r1, %r2, %r3, %r4}, %c;"
    yield Case("mov.b64 halves", pack, ("b16", "b16", "b64"), ("b64", *("b16",) * 4))
