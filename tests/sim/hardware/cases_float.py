"""Floating-point arithmetic that rounds exactly, and the approximations of the special function unit."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case, simple

ROUNDINGS = ("rn", "rz", "rm", "rp")


def float_cases() -> Iterator[Case]:
    for rounding in ROUNDINGS:
        for flush in ("", ".ftz"):
            for opcode in ("add", "sub", "mul"):
                yield simple(f"{opcode}.{rounding}{flush}.f32", "f32", "f32 f32")
            yield simple(f"fma.{rounding}{flush}.f32", "f32", "f32 f32 f32:cancel")
            yield simple(f"div.{rounding}{flush}.f32", "f32", "f32 f32")
            yield simple(f"rcp.{rounding}{flush}.f32", "f32", "f32")
            yield simple(f"sqrt.{rounding}{flush}.f32", "f32", "f32")
        for opcode in ("add", "sub", "mul", "div"):
            yield simple(f"{opcode}.{rounding}.f64", "f64", "f64 f64")
        yield simple(f"fma.{rounding}.f64", "f64", "f64 f64 f64:cancel")
        yield simple(f"rcp.{rounding}.f64", "f64", "f64")
        yield simple(f"sqrt.{rounding}.f64", "f64", "f64")
    for opcode in ("add.rn.sat.f32", "sub.rz.ftz.sat.f32", "mul.rn.sat.f32", "mul.rp.ftz.sat.f32"):
        yield simple(opcode, "f32", "f32 f32")
    for opcode in ("fma.rn.sat.f32", "fma.rm.ftz.sat.f32", "mad.rn.f32", "mad.rz.ftz.f32"):
        yield simple(opcode, "f32", "f32 f32 f32:cancel")
    yield Case("fma.rn.f32 unrelated", "fma.rn.f32 %r0, %a, %b, %c;", ("f32",) * 3, ("f32",))
    yield Case("fma.rn.f64 unrelated", "fma.rn.f64 %r0, %a, %b, %c;", ("f64",) * 3, ("f64",))
    for kind in ("f32", "ftz.f32", "f64"):
        plain = kind.removeprefix("ftz.")
        yield from (simple(f"{opcode}.{kind}", plain, f"{plain} {plain}") for opcode in ("min", "max"))
        yield from (simple(f"{opcode}.{kind}", plain, plain) for opcode in ("abs", "neg"))
        if kind != "ftz.f32":  # without a rounding the assembler may fuse, but there is nothing to fuse with here
            yield from (simple(f"{opcode}.{kind}", plain, f"{plain} {plain}") for opcode in ("add", "sub", "mul"))
    yield simple("mad.rn.f64", "f64", "f64 f64 f64:cancel")


def half_cases() -> Iterator[Case]:
    for kind in ("f16", "f16x2"):
        for flags in (".rn", ".rn.ftz", ".rn.sat", ".rn.ftz.sat"):
            for opcode in ("add", "sub", "mul"):
                yield simple(f"{opcode}{flags}.{kind}", kind, f"{kind} {kind}")
            third = "f16:cancel" if kind == "f16" else "f16x2"
            yield simple(f"fma{flags}.{kind}", kind, f"{kind} {kind} {third}")
        yield Case(f"fma.rn.{kind} unrelated", f"fma.rn.{kind} %r0, %a, %b, %c;", (kind,) * 3, (kind,))
        yield from (simple(f"{opcode}.{kind}", kind, f"{kind} {kind}") for opcode in ("add", "sub", "mul"))
        for opcode in ("neg", "abs", "neg.ftz", "abs.ftz"):
            yield simple(f"{opcode}.{kind}", kind, kind)
    for opcode in ("add.rn", "mul.rn"):  # constants take another path through code generation
        for constant in ("0x3C003C00", "0xC2003555", "0x80010001"):
            body = f"mov.b32 %t0, {constant};\n{opcode}.f16x2 %r0, %a, %t0;"
            yield Case(f"{opcode}.f16x2 by {constant}", body, ("f16x2",), ("f16x2",))
    for constant in ("0x2C002C00", "0xD480E480"):  # the dequantization idiom: 1024 + q, scaled and shifted
        body = f"mov.b32 %t0, {constant};\nmov.b32 %t1, 0xD480D480;\nfma.rn.f16x2 %r0, %a, %t0, %t1;"
        yield Case(f"fma.rn.f16x2 by {constant}", body, ("f16x2",), ("f16x2",))


def approximate_cases() -> Iterator[Case]:
    """Tolerances: the larger of what the PTX manual allows twice (each side once) and one more unit."""
    for flush in ("", ".ftz"):
        yield simple(f"rcp.approx{flush}.f32", "f32", "f32", ulp=2)
        yield simple(f"sqrt.approx{flush}.f32", "f32", "f32", ulp=4)
        yield simple(f"rsqrt.approx{flush}.f32", "f32", "f32", ulp=4)
        yield simple(f"div.approx{flush}.f32", "f32", "f32 f32", ulp=4)
        yield simple(f"div.full{flush}.f32", "f32", "f32 f32", ulp=4)
        yield simple(f"ex2.approx{flush}.f32", "f32", "f32", ulp=4)
        yield simple(f"lg2.approx{flush}.f32", "f32", "f32", ulp=4, absolute=2.0**-21)
        for opcode in ("sin", "cos"):
            name = f"{opcode}.approx{flush}.f32"
            yield Case(name, f"{name} %r0, %a;", ("f32:angle",), ("f32",), ulp=2, absolute=2.0**-19)
    yield simple("rcp.approx.ftz.f64", "f64", "f64", ulp=2.0**33)
    yield simple("rsqrt.approx.f64", "f64", "f64", ulp=2.0**34)
    yield simple("rsqrt.approx.ftz.f64", "f64", "f64", ulp=2.0**33)
    for name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt"):
        opcode = f"{name}.approx.ftz.f32"
        yield Case(f"{opcode} moderate", f"{opcode} %r0, %a;", ("f32:moderate",), ("f32",), ulp=4, absolute=2.0**-21)
