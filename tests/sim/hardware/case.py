"""One opcode case: a few PTX instructions between loads of operands and stores of results, and the kernel around them.

Each thread of the kernel loads its own operands %a, %b, %c, ... from one input buffer, runs the body, and stores
%r0, %r1, ... to one output buffer. Buffers hold one region an operand, ``threads`` elements of natural width each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BLOCKS = 2
HEADER = ".version 8.3\n.target sm_70\n.address_size 64\n"
SCRATCH = (
    "\t.reg .pred %p<8>;\n\t.reg .b16 %h<8>;\n\t.reg .b32 %t<16>;\n\t.reg .b64 %q<8>;\n"
    "\t.reg .f32 %f<8>;\n\t.reg .f64 %e<4>;\n\t.reg .b64 %in, %out, %at, %to;\n\t.reg .b32 %thread, %block, %width;\n"
)
WIDTHS = {"pred": 1, "u8": 1, "s8": 1, "b8": 1, "f16": 2, "f16x2": 4}


def width_of(type_name: str) -> int:
    """Bytes of one element in the buffers; a predicate travels as a byte."""
    return WIDTHS.get(type_name) or int(re.sub(r"\D", "", type_name)) // 8


@dataclass(frozen=True)
class Case:
    """What runs on both sides.

    ``inputs`` are "type" or "type:draw" (see operands.py), ``outputs`` types. ``ulp`` and ``absolute`` are the
    distance that an approximation may have from the hardware's result (either suffices); both zero: equal bits, NaNs
    of any payload counting as one. ``unordered``: results are compared as a sorted list, because the hardware may give
    them to the threads in any order.
    """

    name: str
    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ulp: float = 0
    absolute: float = 0
    unordered: bool = False
    threads: int = 320
    blocks: int = BLOCKS
    declarations: str = ""  # inside the kernel: registers, shared and local arrays
    module: str = ""  # before the kernel: functions, global and constant variables

    @property
    def entry(self) -> str:
        return "case_" + re.sub(r"\W+", "_", self.name)

    @property
    def input_types(self) -> list[str]:
        return [operand.split(":")[0] for operand in self.inputs]

    def offsets(self, types: list[str]) -> list[int]:
        """Byte offset of each operand's region, and the size of the whole buffer last."""
        starts = [0]
        for type_name in types:
            starts.append(starts[-1] + -(-width_of(type_name) * self.threads // 16) * 16)
        return starts


def simple(opcode: str, result: str, operands: str, **options: float | str | bool | int) -> Case:
    """The commonest case: one instruction, one result."""
    inputs = tuple(operands.split())
    letters = ", ".join(f"%{chr(ord('a') + i)}" for i in range(len(inputs)))
    return Case(opcode, f"{opcode} %r0, {letters};", inputs, (result,), **options)  # type: ignore[arg-type]


def kernel_text(case: Case) -> str:
    """The kernel of one case, with what it needs at module level."""
    size = case.threads // case.blocks
    prologue = (
        f"\tld.param.u64 %in, [{case.entry}_in];\n\tld.param.u64 %out, [{case.entry}_out];\n"
        "\tcvta.to.global.u64 %in, %in;\n\tcvta.to.global.u64 %out, %out;\n"
        "\tmov.u32 %thread, %tid.x;\n\tmov.u32 %block, %ctaid.x;\n\tmov.u32 %width, %ntid.x;\n"
        "\tmad.lo.u32 %thread, %block, %width, %thread;\n"
    )
    return (
        f"{case.module}\n.visible .entry {case.entry}(.param .u64 {case.entry}_in, .param .u64 {case.entry}_out)\n"
        f".maxntid {size}, 1, 1\n{{\n{SCRATCH}{_registers(case)}{case.declarations}\n{prologue}{_loads(case)}"
        + "".join(f"\t{line.strip()}\n" for line in case.body.strip().splitlines())
        + f"{_stores(case)}\tret;\n}}\n"
    )


def module_text(cases: list[Case]) -> str:
    """Several cases as one PTX text."""
    return HEADER + "".join(kernel_text(case) for case in cases)


def register_type(type_name: str) -> str:
    """The PTX type of the register that holds a value: 8-bit values live in 16-bit registers, halves are untyped."""
    return {"u8": "u16", "s8": "s16", "b8": "b16", "f16": "b16", "f16x2": "b32"}.get(type_name, type_name)


def _registers(case: Case) -> str:
    lines = [f"\t.reg .{register_type(t)} %{chr(ord('a') + i)};\n" for i, t in enumerate(case.input_types)]
    lines += [f"\t.reg .{register_type(t)} %r{i};\n" for i, t in enumerate(case.outputs)]
    return "".join(lines)


def _memory_type(type_name: str) -> str:
    return {"f16": "b16", "f16x2": "b32"}.get(type_name, type_name)


def _loads(case: Case) -> str:
    lines = []
    for i, (type_name, offset) in enumerate(zip(case.input_types, case.offsets(case.input_types)[:-1], strict=True)):
        name = f"%{chr(ord('a') + i)}"
        lines.append(f"\tmad.wide.u32 %at, %thread, {width_of(type_name)}, %in;\n")
        if type_name == "pred":
            lines.append(f"\tld.global.u8 %h7, [%at+{offset}];\n\tsetp.ne.u16 {name}, %h7, 0;\n")
        else:
            lines.append(f"\tld.global.{_memory_type(type_name)} {name}, [%at+{offset}];\n")
    return "".join(lines)


def _stores(case: Case) -> str:
    lines = []
    for i, (type_name, offset) in enumerate(zip(case.outputs, case.offsets(list(case.outputs))[:-1], strict=True)):
        lines.append(f"\tmad.wide.u32 %to, %thread, {width_of(type_name)}, %out;\n")
        if type_name == "pred":
            lines.append(f"\tselp.u16 %h7, 1, 0, %r{i};\n\tst.global.u8 [%to+{offset}], %h7;\n")
        else:
            lines.append(f"\tst.global.{_memory_type(type_name)} [%to+{offset}], %r{i};\n")
    return "".join(lines)
