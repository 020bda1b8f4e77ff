"""Branches, loops, calls, barriers with reductions, and the tensor core's one instruction."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case

WEAVE = """.func (.reg .b32 %result) weave(.reg .b32 %left, .reg .b32 %right)
{
	.reg .b32 %x;
	.reg .pred %p;
	setp.lt.u32 %p, %left, %right;
	mul.lo.u32 %x, %left, 7;
	@%p add.u32 %x, %x, %right;
	xor.b32 %result, %x, %right;
	ret;
}
"""
EARLY = """.func (.param .b32 result) early(.param .b32 number)
{
	.reg .b32 %x, %n;
	.reg .pred %p;
	ld.param.u32 %n, [number];
	mov.u32 %x, 1;
	setp.lt.u32 %p, %n, 100;
	@%p bra DONE;
	shr.u32 %x, %n, 3;
DONE:
	st.param.b32 [result], %x;
	ret;
}
"""


def control_cases() -> Iterator[Case]:
    yield from _branches()
    yield from _calls()
    yield from _barriers()


def _branches() -> Iterator[Case]:
    body = (  # Collatz: every thread loops its own number of times
        "and.b32 %t0, %a, 1023;\nadd.u32 %t0, %t0, 1;\nmov.u32 %r0, 0;\nagain:\nsetp.eq.u32 %p0, %t0, 1;\n"
        "@%p0 bra done;\nand.b32 %t1, %t0, 1;\nsetp.ne.u32 %p1, %t1, 0;\n@%p1 bra odd;\nshr.u32 %t0, %t0, 1;\n"
        "bra next;\nodd:\nmad.lo.u32 %t0, %t0, 3, 1;\nnext:\nadd.u32 %r0, %r0, 1;\nbra again;\ndone:"
    )
    yield Case("divergent loop", body, ("u32",), ("u32",), threads=160)
    arms = "".join(f"arm{i}:\n{code}\nbra.uni done;\n" for i, code in enumerate(
        ("add.u32 %r0, %a, 1;", "mul.lo.u32 %r0, %a, 3;", "not.b32 %r0, %a;", "mov.u32 %r0, 42;")))  # fmt: skip
    body = f"mov.u32 %r0, 9;\nbrx.idx %b, targets;\n{arms}done:"
    targets = "\ttargets: .branchtargets arm0, arm1, arm2, arm3;\n"
    yield Case("brx.idx", f"{targets}{body}", ("u32", "u32:two"), ("u32",))
    body = (
        "and.b32 %t0, %a, 3;\nmov.u32 %r0, 5;\nmov.u32 %r1, 6;\nsetp.eq.u32 %p0, %t0, 0;\nsetp.gt.u32 %p1, %t0, 1;\n"
        "@%p0 add.u32 %r0, %r0, %a;\n@!%p0 sub.u32 %r0, %r0, %a;\n@%p1 mov.u32 %r1, %r0;\n@!%p1 mov.u32 %r0, %r1;"
    )
    yield Case("predicated moves", body, ("u32",), ("u32", "u32"))
    body = (
        "mad.wide.u32 %q0, %thread, 4, %out;\nst.global.u32 [%q0], 17;\nmov.u32 %r0, 23;\nand.b32 %t0, %a, 1;\n"
        "setp.eq.u32 %p0, %t0, 0;\n@%p0 exit;\n@%b ret;"
    )
    yield Case("early exit", body, ("u32", "pred"), ("u32",))
    body = (  # both sides of a branch read and write the same register pair
        "mov.u32 %t0, %a;\nmov.u32 %t1, %b;\nsetp.lt.u32 %p0, %t0, %t1;\n@%p0 bra swap;\nadd.u32 %t0, %t0, 1;\n"
        "bra join;\nswap:\nmov.u32 %t2, %t0;\nmov.u32 %t0, %t1;\nmov.u32 %t1, %t2;\njoin:\n"
        "mov.u32 %r0, %t0;\nmov.u32 %r1, %t1;"
    )
    yield Case("swap in a branch", body, ("u32", "u32"), ("u32", "u32"))
    yield Case("nanosleep.u32", "nanosleep.u32 20;\nmov.u32 %r0, %a;", ("u32",), ("u32",))
    body = "mov.u32 %t0, %laneid;\nsetp.lt.u32 %p0, %t0, 12;\n@%p0 bra low;\nmov.u32 %r0, 1;\nbra join;\nlow:\n"
    body += "vote.sync.ballot.b32 %r0, %a, 0xfff;\njoin:\nvote.sync.ballot.b32 %r1, %p0, 0xffffffff;"
    yield Case("ballot in a branch and after it", body, ("pred",), ("u32", "u32"))


def _calls() -> Iterator[Case]:
    body = "call.uni (%r0), weave, (%a, %b);\ncall (%r1), weave, (%r0, %a);"
    yield Case("call with registers", body, ("u32", "u32"), ("u32", "u32"), module=WEAVE)
    call = (
        "{{\n.param .b32 given;\n.param .b32 back;\nst.param.b32 [given], {given};\ncall.uni (back), early, (given);\n"
        "ld.param.b32 {back}, [back];\n}}\n"
    )
    body = call.format(given="%a", back="%r0") + call.format(given="%b", back="%r1")
    yield Case("call with parameters", body, ("u32", "u32:byte"), ("u32", "u32"), module=EARLY)


def _barriers() -> Iterator[Case]:
    for kind, result in (("popc.u32", "u32"), ("and.pred", "pred"), ("or.pred", "pred")):
        for negation in ("", "!"):
            body = f"bar.red.{kind} %r0, 0, {negation}%a;\nsetp.ne.u32 %p0, %block, 0;\nor.pred %p1, %a, %p0;\n"
            body += f"bar.red.{kind} %r1, 0, {negation}%p1;"
            name = f"bar.red.{kind} {'not ' if negation else ''}p"
            yield Case(name, body, ("pred",), (result, result))
    reverse = (
        "mov.u32 %t0, %tid.x;\nmov.u32 %t1, tile;\nmad.lo.u32 %t2, %t0, 4, %t1;\nst.shared.u32 [%t2], %a;\n{barrier}\n"
        "mov.u32 %t3, 159;\nsub.u32 %t3, %t3, %t0;\nmad.lo.u32 %t2, %t3, 4, %t1;\nld.shared.u32 %r0, [%t2];"
    )
    tile = "\t.shared .align 4 .b8 tile[640];\n"
    for barrier in ("bar.sync 0;", "bar.sync 3;", "barrier.sync 0;", "bar.sync 1, 160;", "barrier.sync.aligned 2;"):
        yield Case(barrier.rstrip(";"), reverse.format(barrier=barrier), ("u32",), ("u32",), declarations=tile)
    body = (  # producers arrive and go on, one consumer warp waits
        "mov.u32 %t0, %tid.x;\nmov.u32 %t1, tile;\nmad.lo.u32 %t2, %t0, 4, %t1;\nmov.u32 %r0, 0;\n"
        "setp.lt.u32 %p0, %t0, 32;\n@%p0 bra consumer;\nst.shared.u32 [%t2], %a;\nbar.arrive 1, 160;\nbra done;\n"
        "consumer:\nbar.sync 1, 160;\nld.shared.u32 %r0, [%t2+512];\ndone:"
    )
    yield Case("bar.arrive", body, ("u32",), ("u32",), declarations=tile)


def matrix_cases() -> Iterator[Case]:
    """mma.sync.m8n8k4: whole numbers are exact in any order of summation, moderate ones within it."""
    for layout_a in ("row", "col"):
        for layout_b in ("row", "col"):
            for d, c in (("f32", "f32"), ("f16", "f16"), ("f32", "f16")):
                yield _mma(layout_a, layout_b, d, c, "whole", 0)
                if d == c:
                    yield _mma(layout_a, layout_b, d, c, "moderate", 2.0**-12 if d == "f32" else 0.25)


def _mma(layout_a: str, layout_b: str, d: str, c: str, draw: str, absolute: float) -> Case:
    fragment = {"f32": ("f32", 8), "f16": ("f16x2", 4)}
    kind, count = fragment[c]
    inputs = (f"f16x2:{draw}",) * 4 + (f"{kind}:{draw}",) * count
    results, number = fragment[d]
    letters = [f"%{chr(ord('a') + i)}" for i in range(4 + count)]
    body = (
        f"mma.sync.aligned.m8n8k4.{layout_a}.{layout_b}.{d}.f16.f16.{c} "
        f"{{{', '.join(f'%r{i}' for i in range(number))}}}, {{{', '.join(letters[:2])}}}, "
        f"{{{', '.join(letters[2:4])}}}, {{{', '.join(letters[4:])}}};"
    )
    name = f"mma.m8n8k4.{layout_a}.{layout_b}.{d}.{c} {draw}"
    return Case(name, body, inputs, (results,) * number, absolute=absolute, threads=128)
