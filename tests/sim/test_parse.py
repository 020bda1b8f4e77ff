"""PTX text to declarations, flat instructions and their places in the CUDA source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.ptx_snippets import HEADER, kernel_of

from labkit.errors import PtxError
from labkit.sim.load import load_ptx
from labkit.sim.machine import launch
from labkit.sim.parse import immediate_bits, parse, split_operands
from labkit.sim.statements import split

PROGRAMS = Path(__file__).parent / "hardware" / "programs" / "ptx"


def test_statements_know_their_lines_and_scopes() -> None:
    text = split("// one\nadd.s32 %r1, %r2,\n  3; L1: { /* a\n b */ mov.b32 {%h1, %h2}, %r1; }\n.version 8.3\nret;")
    assert [(s.text, s.line) for s in text.statements] == [
        ("add.s32 %r1, %r2, 3", 2),
        ("L1:", 3),
        ("{", 3),
        ("mov.b32 {%h1, %h2}, %r1", 4),
        ("}", 4),
        (".version 8.3", 5),
        ("ret", 6),
    ]


def test_code_inlined_from_the_toolkit_counts_for_its_caller() -> None:
    kernel = kernel_of(
        """.visible .entry k() {
        .reg .b32 %r<4>;
        .loc 1 7 3
        mov.u32 %r1, %tid.x;
        .loc 2 500 1, function_name $L__info, inlined_at 1 9 3
        add.s32 %r2, %r1, 1;
        .loc 3 12 1, function_name $L__info, inlined_at 1 10 3
        add.s32 %r3, %r1, 2;
        .loc 1 0 3
        ret; }
        .file 1 "/home/me/k.cu"
        .file 2 "/usr/lib/nvidia/include/cuda_fp16.hpp"
        .file 3 "/home/me/mine.cuh"
        .section .debug_str { $L__info: .b8 1, 2; }
        """
    )
    places = [(site.file, site.line) for site in kernel.sites]
    assert places == [("/home/me/k.cu", 7), ("/home/me/k.cu", 9), ("/home/me/mine.cuh", 12), ("/home/me/mine.cuh", 12)]
    assert kernel.sites[1].text == "add.s32 %r2, %r1, 1"


def test_declarations_are_laid_out() -> None:
    module = load_ptx(
        HEADER
        + """.global .align 8 .u64 counter = 5;
        .const .align 4 .f32 table[2][2] = {{0f3F800000, 2.0}, {0f40400000}};
        .global .attribute(.managed) .align 2 .b8 text[4] = {104, 105};
        .extern .shared .align 16 .b8 dynamic[];
        .shared .align 4 .b8 common[12];
        .visible .entry k(.param .u8 a, .param .align 8 .b8 b[24],
        .param .u64 .ptr .global .align 4 c) .maxntid 8, 4, 1 {
            .local .align 16 .b8 depot[40]; .shared .align 32 .b8 tile[33]; .shared .f64 sum;
            .reg .b32 %r<3>;
            mov.u32 %r1, common; mov.u32 %r2, dynamic; st.shared.u32 [%r1], %r2; ret; }
        """
    )
    kernel = module.kernels["k"]
    assert [(p.name, p.offset, p.size, p.align) for p in kernel.parameters] == [
        ("a", 0, 1, 1),
        ("b", 8, 24, 8),
        ("c", 32, 8, 8),
    ]
    assert {name: v.offset for name, v in kernel.shared.items()} == {"tile": 0, "sum": 40, "common": 48, "dynamic": 64}
    assert (kernel.shared_bytes, kernel.local_bytes, kernel.max_threads) == (64, 40, 32)
    assert module.variables["counter"].initial == (5).to_bytes(8, "little")
    assert module.variables["table"].initial == bytes.fromhex("0000803f 00000040 00004040 00000000")
    assert module.variables["text"].initial == b"hi\0\0"
    assert module.target == "sm_70"


@pytest.mark.parametrize(
    ("word", "type_name", "bits"),
    [
        ("-1", "s32", 0xFFFFFFFF),
        ("-1", "u16", 0xFFFF),
        ("0x80000000", "b32", 0x80000000),
        ("010", "u32", 8),
        ("0b101", "u32", 5),
        ("7U", "u64", 7),
        ("0f3F800000", "f32", 0x3F800000),
        ("0f3F800000", "b32", 0x3F800000),
        ("0f3F800000", "f64", 0x3FF0000000000000),
        ("0d4000000000000000", "f32", 0x40000000),
        ("-0f3F800000", "f32", 0xBF800000),
        ("0f7FC01234", "f32", 0x7FC01234),
        ("1.5", "f32", 0x3FC00000),
        ("2", "f64", 0x4000000000000000),
        ("%r1", "u32", None),
        ("tile", "u32", None),
    ],
)
def test_immediates(word: str, type_name: str, bits: int | None) -> None:
    assert immediate_bits(word, type_name) == bits


def test_operands_split_outside_brackets() -> None:
    assert split_operands("{%f1, %f2}, [%rd1 + 8], %p1|%p2, !%p3") == ["{%f1,%f2}", "[%rd1+8]", "%p1|%p2", "!%p3"]


def test_scopes_give_equal_names_to_different_registers() -> None:
    kernel = kernel_of(
        """.visible .entry k(.param .u64 out) { .reg .b32 %r<2>; .reg .b64 %rd<2>;
        mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [out];
        { .reg .b16 low; .reg .b32 t; bra done; mov.b32 t, 1; done: mov.u32 t, %r1; st.global.u32 [%rd1], t; }
        { .reg .b64 t; bra done; mov.b64 t, 1; done: mov.u64 t, %rd1; st.global.u64 [%rd1+8], t; }
        ret; }"""
    )
    assert {kernel.registers["t"], kernel.registers["t~1"]} == {"b32", "b64"}


FUNCTION = """.func (.param .b32 result) twice(.param .align 4 .b8 pair[8]) {
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [pair]; ld.param.s8 %r2, [pair+4];
    setp.eq.u32 %p, %r1, 0; @%p bra other;
    add.s32 %r3, %r1, %r2; st.param.b32 [result], %r3; ret;
    other: st.param.b32 [result+0], %r2; ret; }
"""


def test_calls_are_replaced_by_what_they_call() -> None:
    text = FUNCTION.replace(".reg .b32", ".reg .pred %p; .reg .b32", 1)
    kernel = kernel_of(
        text
        + """.visible .entry k(.param .u64 out) { .reg .b32 %r<5>; .reg .b16 %h; .reg .b64 %rd;
        mov.u32 %r1, %tid.x; ld.param.u64 %rd, [out]; mov.u16 %h, 200;
        { .param .align 4 .b8 param0[8]; st.param.b32 [param0+0], %r1; st.param.b8 [param0+4], %h;
          .param .b32 retval0; call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0+0]; }
        mad.wide.u32 %rd, %r1, 4, %rd; st.global.u32 [%rd], %r2; ret; }"""
    )
    out = np.zeros(32, np.int32)
    launch(kernel, 1, 32, [out])
    assert out.tolist() == [-56, *range(1 - 56, 32 - 56)]  # 200 as a signed byte is -56


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("frob.s32 %r1, %r1;", "frob.s32"),
        ("st.shared.u32 [tile], %nothing;", "%nothing"),
        ("bra nowhere;", "nowhere"),
        ("shfl.bfly.b32 %r1, %r1, 1, 31;", "shfl.bfly.b32"),
        ("mul.rn.relu.f16 %h1, %h1, %h1; st.shared.u16 [tile], %h1;", "relu"),
        ("mov.b64 %d1, %r1; st.shared.u64 [tile], %d1;", "too narrow"),
        ("call again, ();", "calls itself"),
        ("call %d1, ();", "follow"),
        ("call malloc, ();", "malloc"),
    ],
)
def test_errors_name_line_and_instruction(body: str, complaint: str) -> None:
    text = (
        ".extern .func malloc;\n.func again() { call again, (); ret; }\n"
        f".visible .entry k() {{ .shared .b64 tile; .reg .b32 %r1; .reg .b16 %h1; .reg .b64 %d1;\n{body}\nret; }}"
        ".visible .entry good() { ret; }"
    )
    module = load_ptx(HEADER + text)
    assert module.kernels["good"].name == "good"  # one kernel's fault does not touch the others
    with pytest.raises(PtxError) as caught:
        module.kernels["k"]
    assert complaint in caught.value.message
    assert "PTX line" in caught.value.message
    assert caught.value.cure


def test_unknown_kernel_is_named() -> None:
    with pytest.raises(PtxError, match=r"'x'.*The module has: k"):
        load_ptx(HEADER + ".visible .entry k() { ret; }").kernels["x"]


def test_open_function_and_odd_declaration_are_refused() -> None:
    with pytest.raises(PtxError, match="not closed"):
        parse(HEADER + ".visible .entry k() { ret;")
    with pytest.raises(PtxError, match="does not know the declaration"):
        parse(HEADER + ".global .surfref picture;")
    with pytest.raises(PtxError, match="is no number"):
        parse(HEADER + ".global .u32 p = table;")


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.ptx")), ids=lambda path: path.stem)
def test_compiled_programs_load(path: Path) -> None:
    module = load_ptx(path.read_text())
    for name in module.kernels:
        kernel = module.kernels[name]
        assert kernel.blocks
        assert all(block.run is not None for block in kernel.blocks)
        assert all(site.line > 0 and site.file.endswith((".cu", ".cuh")) for site in kernel.sites)


def test_initial_values_may_be_addresses() -> None:
    module = parse(
        HEADER + ".global .b8 t[8];\n.global .u64 p[3] = {generic(t), 5, generic(t)+4};\n.global .u64 q = t;"
    )
    assert module.variables["p"].pointers == ((0, "t", 0), (16, "t", 4))
    assert module.variables["p"].initial == bytes(8) + (5).to_bytes(8, "little") + bytes(8)
    assert module.variables["q"].pointers == ((0, "t", 0),)
