"""Loads and stores: widths, vectors, extension, state spaces, orders; moves of addresses between spaces."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case

REGISTER = {8: "u16", 16: "u16", 32: "u32", 64: "u64"}
TABLE = "const .align 16 .b8 table_{entry}[64] = {{{values}}};\n"
SHARED = "\t.shared .align 16 .b8 tile[5120];\n"  # 32 bytes for each of 160 threads
SHARED_ADDRESS = "mov.u32 %t1, %tid.x;\nmov.u32 %t0, tile;\nmad.lo.u32 %t0, %t1, 32, %t0;\n"
LOCAL = "\t.local .align 16 .b8 stack[64];\n"


def memory_cases() -> Iterator[Case]:
    yield from _extension()
    yield from _vectors()
    yield from _orders()
    yield from _windows()
    yield from _constants()


def _extension() -> Iterator[Case]:
    """A narrow load into a wider register: signed types extend their sign, the others zeros."""
    for kind in ("u8", "s8", "b8", "u16", "s16", "u32", "s32"):
        bits = int(kind[1:])
        for target in ("u16", "u32", "u64"):
            if int(target[1:]) < bits:
                continue
            body = f"mad.wide.u32 %q0, %thread, 8, %in;\nld.global.{kind} %r0, [%q0];\nld.global.{kind} %r1, [%q0+4];"
            yield Case(f"ld.global.{kind} into {target}", body, ("b64",), (target, target))
    for bits, source in ((8, "u32"), (8, "u64"), (16, "u32"), (16, "u64"), (32, "u64")):
        body = (
            f"mad.wide.u32 %q0, %thread, 8, %out;\nst.global.u64 [%q0], %b;\nst.global.u{bits} [%q0+{bits // 8}], %a;\n"
            "ld.global.u64 %r0, [%q0];"
        )
        yield Case(f"st.global.u{bits} from {source}", body, (source, "u64"), ("u64",))


def _vectors() -> Iterator[Case]:
    """Vectors of every width through global, shared and local memory."""
    for bits, count in ((8, 2), (8, 4), (16, 2), (16, 4), (32, 2), (32, 4), (64, 2)):
        kind = f"b{bits}"
        names = ", ".join(f"%r{i}" for i in range(count))
        values = ", ".join("%" + "abcd"[i] for i in range(count))
        operands, results = (kind,) * count, (f"b{max(bits, 16)}",) * count
        for space, where, address in (
            ("shared", SHARED_ADDRESS, "%t0"),
            ("local", "mov.u64 %q0, stack;\nand.b32 %t0, %thread, 3;\nmad.wide.u32 %q0, %t0, 16, %q0;\n", "%q0"),
        ):
            body = f"{where}st.{space}.v{count}.{kind} [{address}], {{{values}}};\n"
            body += f"ld.{space}.v{count}.{kind} {{{names}}}, [{address}];"
            declarations = SHARED if space == "shared" else LOCAL
            yield Case(f"{space} v{count}.{kind}", body, operands, results, declarations=declarations)
        size = bits * count // 8
        stride = f"and.b32 %t0, %thread, 15;\nmad.wide.u32 %q0, %t0, {size}, %in;\n"
        load = f"{stride}ld.global.nc.v{count}.{kind} {{{names}}}, [%q0];"
        yield Case(f"ld.global.nc v{count}.{kind}", load, ("u64", "u64"), results)
        load = f"{stride}ld.global.v{count}.{kind} {{{names}}}, [%q0];"
        yield Case(f"ld.global v{count}.{kind}", load, ("u64", "u64"), results)
    body = "mad.wide.u32 %q0, %thread, 16, %out;\nst.global.v4.f32 [%q0], {%a, %b, %c, %d};\nbar.sync 0;\n"
    body += "ld.global.v2.f64 {%r0, %r1}, [%q0];\nbar.sync 0;\n"
    yield Case("st.global.v4.f32 read as f64", body, ("f32",) * 4, ("b64", "b64"), threads=160, blocks=1)


def _orders() -> Iterator[Case]:
    """Cache hints, volatile and the memory model's orders change nothing that one thread sees."""
    loads = ("ca", "cg", "cs", "lu", "cv", "volatile", "relaxed.cta", "relaxed.gpu", "acquire.gpu", "acquire.sys", "nc")
    for order in loads:
        name = f"ld.{order}.global" if order not in ("ca", "cg", "cs", "lu", "cv", "nc") else f"ld.global.{order}"
        body = f"mad.wide.u32 %q0, %thread, 4, %in;\n{name}.u32 %r0, [%q0];"
        yield Case(f"{name}.u32", body, ("u32",), ("u32",))
    for order in ("wb", "cg", "cs", "wt", "volatile", "relaxed.gpu", "release.gpu", "release.sys", "relaxed.cta"):
        name = f"st.{order}.global" if order not in ("wb", "cg", "cs", "wt") else f"st.global.{order}"
        body = f"mad.wide.u32 %q0, %thread, 4, %out;\n{name}.u32 [%q0], %a;\nld.global.u32 %r0, [%q0];"
        yield Case(f"{name}.u32", body, ("u32",), ("u32",))
    for fence in ("membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.cta", "fence.sc.gpu", "fence.sc.sys"):
        body = f"mad.wide.u32 %q0, %thread, 4, %out;\nst.global.u32 [%q0], %a;\n{fence};\nld.global.u32 %r0, [%q0];"
        yield Case(fence, body, ("u32",), ("u32",))


def _windows() -> Iterator[Case]:
    """Generic addresses of shared, local and global memory."""
    shared = f"{SHARED_ADDRESS}cvt.u64.u32 %q0, %t0;\ncvta.shared.u64 %q1, %q0;\n"
    body = shared + "st.u32 [%q1], %a;\nld.shared.u32 %r0, [%t0];\nst.shared.u16 [%t0+2], 77;\nld.u32 %r1, [%q1];"
    yield Case("generic shared", body, ("u32",), ("u32", "u32"), declarations=SHARED)
    local = "mov.u64 %q0, stack;\ncvta.local.u64 %q1, %q0;\nand.b32 %t0, %a, 12;\ncvt.u64.u32 %q2, %t0;\n"
    body = local + (
        "add.u64 %q1, %q1, %q2;\nadd.u64 %q0, %q0, %q2;\nst.u32 [%q1], %a;\nld.local.u32 %r0, [%q0];\n"
        "st.local.u8 [%q0+1], 200;\nld.u32 %r1, [%q1];"
    )
    yield Case("generic local", body, ("u32",), ("u32", "u32"), declarations=LOCAL)
    body = "cvta.global.u64 %q0, %in;\nmad.wide.u32 %q0, %thread, 4, %q0;\nld.u32 %r0, [%q0];"
    yield Case("generic global", body, ("u32",), ("u32",))
    body = (
        f"{shared}mov.u64 %q2, stack;\ncvta.local.u64 %q2, %q2;\ncvta.global.u64 %q3, %in;\n"
        "st.shared.u32 [%t0], %a;\nst.local.u32 [stack], %a;\n"
    )
    spaces = ("shared", "local", "global")
    for i, space in enumerate(spaces):
        body += "\n".join(f"isspacep.{space} %r{3 * i + j}, %q{j + 1};" for j in range(3)) + "\n"
    yield Case("isspacep", body, ("u32",), ("pred",) * 9, declarations=SHARED + LOCAL)
    body = (
        f"{shared}st.shared.u32 [%t0], %a;\ncvta.to.shared.u64 %q2, %q1;\nld.shared.u32 %r0, [%q2];\n"
        "setp.ne.u32 %p0, %b, 0;\nmov.u64 %q3, stack;\nst.local.u32 [%q3], %c;\ncvta.local.u64 %q3, %q3;\n"
        "selp.b64 %q1, %q1, %q3, %p0;\nld.u32 %r1, [%q1];"
    )
    operands = ("u32", "u32:bit", "u32")
    yield Case("generic of either window", body, operands, ("u32", "u32"), declarations=SHARED + LOCAL)
    body = f"{SHARED_ADDRESS}st.shared.u32 [tile+16], 5;\nst.shared.u32 [%t0], %a;\nld.shared.s8 %r0, [%t0+3];"
    yield Case("ld.shared.s8", body, ("u32",), ("s32",), declarations=SHARED)
    body = (
        "mov.u64 %q0, stack;\nmov.u32 %t0, 0;\nfill:\nst.local.u32 [%q0], %t0;\nadd.u64 %q0, %q0, 4;\n"
        "add.u32 %t0, %t0, 3;\nsetp.lt.u32 %p0, %t0, 48;\n@%p0 bra fill;\nmov.u64 %q0, stack;\nand.b32 %t0, %a, 15;\n"
        "mad.wide.u32 %q0, %t0, 4, %q0;\nld.local.u32 %r0, [%q0];"
    )
    yield Case("local array by index", body, ("u32",), ("u32",), declarations=LOCAL)


def _constants() -> Iterator[Case]:
    """Constant and global tables with initial values."""
    numbers = [(37 * i + 11) % 256 for i in range(64)]
    values = ", ".join(map(str, numbers))
    for kind, step in (("u8", 1), ("s8", 1), ("u16", 2), ("s16", 2), ("u32", 4), ("b64", 8)):
        register = "u64" if kind == "b64" else f"{kind[0]}32"
        body = (
            f"mov.u64 %q0, table_c{kind};\nand.b32 %t0, %a, {64 // step - 1};\nmad.wide.u32 %q0, %t0, {step}, %q0;\n"
            f"ld.const.{kind} %r0, [%q0];\nld.const.{kind} %r1, [table_c{kind}+{step}];"
        )
        module = f".const .align 16 .b8 table_c{kind}[64] = {{{values}}};\n"
        yield Case(f"ld.const.{kind}", body, ("u32",), (register, register), module=module)
    module = (
        ".global .align 4 .u32 primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};\n.global .align 4 .f32 half = 0f3F000000;\n"
    )
    body = (
        "mov.u64 %q0, primes;\nand.b32 %t0, %a, 7;\nmad.wide.u32 %q0, %t0, 4, %q0;\nld.global.u32 %r0, [%q0];\n"
        "ld.global.f32 %r1, [half];\ncvta.global.u64 %q1, %q0;\nld.u32 %r2, [%q1];"
    )
    yield Case("global variables", body, ("u32",), ("u32", "f32", "u32"), module=module)
