"""Operations between the lanes of a warp.

Lanes that would read an absent lane are left out: what they get is undefined.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case

LANE = "mov.u32 %t0, %laneid;\n"
FULL = "0xffffffff"
PARTIAL = {  # member mask -> the PTX predicate of the lanes in it
    "0x0000ffff": "setp.lt.u32 %p0, %t0, 16;",
    "0xffff0000": "setp.ge.u32 %p0, %t0, 16;",
    "0x55555555": "and.b32 %t1, %t0, 1;\nsetp.eq.u32 %p0, %t1, 0;",
    "0x000000ff": "setp.lt.u32 %p0, %t0, 8;",
}


def warp_cases() -> Iterator[Case]:
    yield from _shuffles()
    yield from _partial_shuffles()
    yield from _votes()
    yield from _matches()
    yield from _masks()


def _shuffles() -> Iterator[Case]:
    for mode in ("up", "down", "bfly", "idx"):
        for width in (32, 16, 8, 4, 2, 1):
            clamp = (32 - width) << 8 | (0 if mode == "up" else 0x1F)
            body = f"shfl.sync.{mode}.b32 %r0|%r1, %a, %b, {clamp}, {FULL};"
            yield Case(f"shfl.sync.{mode} width {width}", body, ("b32", "u32:lane"), ("b32", "pred"))
        for distance in (1, 2, 5, 16, 31):
            clamp = 0 if mode == "up" else 0x1F
            body = f"shfl.sync.{mode}.b32 %r0|%r1, %a, {distance}, {clamp}, {FULL};\n"
            yield Case(f"shfl.sync.{mode} by {distance}", body, ("b32",), ("b32", "pred"))
        body = f"shfl.sync.{mode}.b32 %r0|%r1, %a, %b, %c, {FULL};"  # any clamp, any segment, also odd ones
        operands = ("b32", "u32:lane", "u32:clamp")
        yield Case(f"shfl.sync.{mode} any clamp", body, operands, ("b32", "pred"))
        body = f"shfl.sync.{mode}.b32 %r0, %a, %b, 31, {FULL};"
        yield Case(f"shfl.sync.{mode} large lane numbers", body, ("b32", "u32"), ("b32",))


def _partial_shuffles() -> Iterator[Case]:
    """Only the lanes of the mask take part; the others jump over and keep zero."""
    for mask, member in PARTIAL.items():
        for mode, distance in (("bfly", 2), ("bfly", 4), ("idx", 0), ("up", 2), ("down", 2)):
            if mask == "0xffff0000" and mode == "idx":
                continue  # lane 0 is absent
            clamp = {"up": 0, "down": 15 if mask != "0x000000ff" else 7}.get(mode, 31)
            if mode == "up" and mask == "0xffff0000":
                clamp = 16 << 8  # halves of a warp
            if mode == "down" and mask != "0x0000ffff" and mask != "0x000000ff":
                clamp = 31
            body = (
                f"{LANE}{member}\nmov.b32 %r0, 0;\nmov.pred %r1, 0;\n@!%p0 bra skip;\n"
                f"shfl.sync.{mode}.b32 %r0|%r1, %a, {distance}, {clamp}, {mask};\nskip:\n"
            )
            yield Case(f"shfl.sync.{mode} by {distance} mask {mask}", body, ("b32",), ("b32", "pred"))


def _votes() -> Iterator[Case]:
    for mode in ("all", "any", "uni"):
        for negation in ("", "!"):
            name = f"vote.sync.{mode}.pred {negation}p".replace("!p", "not p")
            body = (
                f"{LANE}shr.u32 %t1, %thread, 5;\nadd.u32 %t1, %t1, 28;\nsetp.lt.u32 %p1, %t0, %t1;\n"
                f"or.pred %p2, %a, %p1;\nvote.sync.{mode}.pred %r0, {negation}%a, {FULL};\n"
                f"vote.sync.{mode}.pred %r1, {negation}%p2, {FULL};\nvote.sync.{mode}.pred %r2, {negation}%p1, {FULL};"
            )
            yield Case(name, body, ("pred",), ("pred", "pred", "pred"))
    body = f"vote.sync.ballot.b32 %r0, %a, {FULL};\nvote.sync.ballot.b32 %r1, !%a, {FULL};"
    yield Case("vote.sync.ballot.b32", body, ("pred",), ("b32", "b32"))
    for mask, member in PARTIAL.items():
        for mode in ("all.pred", "any.pred", "uni.pred", "ballot.b32"):
            kind = mode.split(".")[1]
            zero = "mov.pred %r0, 0;" if kind == "pred" else "mov.b32 %r0, 0;"
            body = f"{LANE}{member}\n{zero}\n@!%p0 bra skip;\nvote.sync.{mode} %r0, %a, {mask};\nskip:\n"
            yield Case(f"vote.sync.{mode} mask {mask}", body, ("pred",), (kind,))


def _matches() -> Iterator[Case]:
    for bits in (32, 64):
        few = f"b{bits}:two"
        yield Case(f"match.any.sync.b{bits}", f"match.any.sync.b{bits} %r0, %a, {FULL};", (few,), ("b32",))
        body = (
            f"shr.u32 %t0, %thread, 6;\nsetp.eq.u32 %p0, %t0, 1;\n@%p0 mov.b{bits} %a, 9;\n"
            f"match.all.sync.b{bits} %r0|%r1, %a, {FULL};"
        )
        yield Case(f"match.all.sync.b{bits}", body, (few,), ("b32", "pred"))
        for mask, member in PARTIAL.items():
            body = f"{LANE}{member}\nmov.b32 %r0, 0;\n@!%p0 bra skip;\nmatch.any.sync.b{bits} %r0, %a, {mask};\nskip:\n"
            yield Case(f"match.any.sync.b{bits} mask {mask}", body, (few,), ("b32",))


def _masks() -> Iterator[Case]:
    registers = ("laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge")
    body = "\n".join(f"mov.u32 %r{i}, %{name};" for i, name in enumerate(registers))
    yield Case("lane masks", body, (), ("b32",) * len(registers))
    registers = ("tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ctaid.x", "nctaid.x", "ctaid.z", "nctaid.y")
    body = "\n".join(f"mov.u32 %r{i}, %{name};" for i, name in enumerate(registers))
    yield Case("thread numbers", body, (), ("b32",) * len(registers))
    for mask, member in PARTIAL.items():
        body = f"{LANE}{member}\nmov.b32 %r0, 0;\n@!%p0 bra skip;\nbar.warp.sync {mask};\nactivemask.b32 %r0;\nskip:\n"
        yield Case(f"activemask.b32 mask {mask}", body, (), ("b32",))
    body = (  # neighbours through shared memory, ordered by the warp barrier only
        "mov.u32 %t1, %tid.x;\nmov.u32 %t0, tile;\nmad.lo.u32 %t0, %t1, 4, %t0;\nst.shared.b32 [%t0], %a;\n"
        f"bar.warp.sync {FULL};\nxor.b32 %t2, %t1, 1;\nmov.u32 %t3, tile;\nmad.lo.u32 %t3, %t2, 4, %t3;\n"
        "ld.shared.b32 %r0, [%t3];"
    )
    yield Case("bar.warp.sync", body, ("b32",), ("b32",), declarations="\t.shared .align 4 .b8 tile[640];\n")
