"""Atomic operations: a thread's own address shows the arithmetic, a shared one that no update is lost."""

from __future__ import annotations

from collections.abc import Iterator

from sim.hardware.case import Case, width_of

OPERATIONS = {
    "b32": ("and", "or", "xor", "exch"),
    "b64": ("and", "or", "xor", "exch"),
    "u32": ("add", "min", "max", "inc", "dec"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max"),
    "s64": ("min", "max"),
    "f32": ("add",),
    "f64": ("add",),
}
COMMUTES = ("add", "and", "or", "xor", "min", "max")
SHARED = "\t.shared .align 16 .b8 cells[2560];\n"  # 16 bytes for each of the block's 160 threads
ADDRESSES = {  # register %q0 (or %t0) points at the cell of element %t1
    "global": "mad.wide.u32 %q0, %t1, {width}, %out;\n",
    "shared": "mov.u32 %t0, cells;\nmad.lo.u32 %t0, %t1, {width}, %t0;\n",
}
ADDRESS = {"global": "%q0", "shared": "%t0"}


def atomic_cases() -> Iterator[Case]:
    for space in ("global", "shared"):
        for kind, operations in OPERATIONS.items():
            for operation in operations:
                yield _own(space, f"{operation}.{kind}", kind)
                if operation in COMMUTES and kind[0] != "f":
                    yield _contended(space, operation, kind)
        yield _own(space, "add.noftz.f16x2", "f16x2")
        yield _own(space, "add.noftz.f16", "f16")
        for bits in (16, 32, 64):
            yield _swap(space, f"b{bits}")
        yield _tickets(space)
        yield _inexact_sum(space)
    yield from _qualified()


def _cell(space: str, kind: str, element: str) -> str:
    return f"mov.u32 %t1, {element};\n" + ADDRESSES[space].format(width=width_of(kind))


def _own(space: str, operation: str, kind: str) -> Case:
    """atom gives the old value, the cell holds the new one; red after it applies the operand once more."""
    memory = {"f16": "b16", "f16x2": "b32"}.get(kind, kind)
    index = "%thread" if space == "global" else "%tid.x"
    address = ADDRESS[space]
    again = f"red.{space}.{operation} [{address}], %c;\n" if "exch" not in operation and kind != "f16" else ""
    body = (
        f"{_cell(space, kind, index)}st.{space}.{memory} [{address}], %a;\n"
        f"atom.{space}.{operation} %r0, [{address}], %b;\n{again}ld.{space}.{memory} %r1, [{address}];\n"
    )
    operands = (kind, kind, kind if again else "u8")
    return Case(f"atom.{space}.{operation}", body, operands, (kind, kind), declarations=SHARED)


def _contended(space: str, operation: str, kind: str) -> Case:
    """All threads of a block update one of three cells; the final values do not depend on the order."""
    shared_cell = "mov.u32 %t2, %tid.x;\nrem.u32 %t2, %t2, 3;\n"
    if space == "global":
        shared_cell += "mad.lo.u32 %t2, %block, 160, %t2;\n"
    own = _cell(space, kind, "%thread" if space == "global" else "%tid.x")
    address = ADDRESS[space]
    body = (
        f"{own}st.{space}.{kind} [{address}], %a;\nbar.sync 0;\n"
        f"{shared_cell}{_cell(space, kind, '%t2')}red.{space}.{operation}.{kind} [{address}], %b;\nbar.sync 0;\n"
        f"{own}ld.{space}.{kind} %r0, [{address}];\n"
    )
    return Case(f"red.{space}.{operation}.{kind} contended", body, (kind, kind), (kind,), declarations=SHARED)


def _swap(space: str, kind: str) -> Case:
    """Compare and swap: half of the threads expect the right value."""
    address = ADDRESS[space]
    index = "%thread" if space == "global" else "%tid.x"
    bits = kind[1:]
    body = (
        f"{_cell(space, kind, index)}st.{space}.{kind} [{address}], %a;\n"
        f"selp.b{bits} %b, %a, %b, %d;\natom.{space}.cas.{kind} %r0, [{address}], %b, %c;\n"
        f"ld.{space}.{kind} %r1, [{address}];\nbar.sync 0;\n"
    )
    return Case(f"atom.{space}.cas.{kind}", body, (kind, kind, kind, "pred"), (kind, kind), declarations=SHARED)


def _tickets(space: str) -> Case:
    """Old values of an add by one are all different: each number is drawn once, in whatever order."""
    address = ADDRESS[space]
    first = "%ctaid.x" if space == "global" else "0"
    spread = "mul.lo.u32 %t1, %t1, 160;\nmad.wide.u32 %q0, %t1, 4, %out;\n" if space == "global" else ""
    body = (
        f"{_cell(space, 'u32', first)}{spread}mov.u32 %t2, %tid.x;\nsetp.eq.u32 %p0, %t2, 0;\n"
        f"@%p0 st.{space}.u32 [{address}], 7;\nbar.sync 0;\natom.{space}.add.u32 %r0, [{address}], 1;\nbar.sync 0;\n"
    )
    return Case(f"atom.{space}.add.u32 tickets", body, (), ("u32",), unordered=True, declarations=SHARED)


def _inexact_sum(space: str) -> Case:
    """Whole numbers added in f32: exact, so the order does not show."""
    address = ADDRESS[space]
    index = "%thread" if space == "global" else "%tid.x"
    base = "mov.u32 %t1, %ctaid.x;\nmul.lo.u32 %t1, %t1, 160;\n" if space == "global" else "mov.u32 %t1, 0;\n"
    own = _cell(space, "f32", index)
    body = (
        f"{own}st.{space}.f32 [{address}], %a;\nbar.sync 0;\n{base}{ADDRESSES[space].format(width=4)}"
        f"red.{space}.add.f32 [{address}], %b;\nbar.sync 0;\n{own}ld.{space}.f32 %r0, [{address}];\n"
    )
    operands = ("f32:whole", "f32:whole")
    return Case(f"red.{space}.add.f32 whole numbers", body, operands, ("f32",), declarations=SHARED)


def _qualified() -> Iterator[Case]:
    """Orders and scopes change nothing that one thread sees; generic addresses find their window."""
    qualifiers = (".relaxed.gpu.global", ".acquire.cta.global", ".release.sys.global", ".acq_rel.gpu.global", "")
    for qualifier in qualifiers:
        reduction = qualifier.replace("acquire", "relaxed").replace("acq_rel", "release")
        body = (
            "mad.wide.u32 %q0, %thread, 4, %out;\nst.global.u32 [%q0], %a;\n"
            f"atom{qualifier}.add.u32 %r0, [%q0], %b;\nred{reduction}.max.u32 [%q0], %a;\n"
            "fence.acq_rel.gpu;\nld.global.u32 %r1, [%q0];\nbar.sync 0;\n"
        )
        yield Case(f"atom{qualifier or ' generic'}.add.u32 order", body, ("u32", "u32"), ("u32", "u32"))
    body = (
        "mov.u32 %t0, cells;\nmov.u32 %t1, %tid.x;\nmad.lo.u32 %t0, %t1, 4, %t0;\ncvt.u64.u32 %q0, %t0;\n"
        "cvta.shared.u64 %q0, %q0;\nst.u32 [%q0], %a;\natom.xor.b32 %r0, [%q0], %b;\nld.u32 %r1, [%q0];"
    )
    yield Case("atom generic to shared", body, ("b32", "b32"), ("b32", "b32"), declarations=SHARED)
