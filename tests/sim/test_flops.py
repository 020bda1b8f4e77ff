"""FLOP are counted by instruction: two for a multiplication with an addition, none for what computes with no floats."""

from __future__ import annotations

import pytest

from labkit.sim.flops import flops_of_instruction


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("fma.rn.f32 %f3, %f1, %f2, %f3;", 2),
        ("add.f32 %f3, %f1, %f2;", 1),
        ("mul.rn.f32 %f3, %f1, %f2;", 1),
        ("rsqrt.approx.f32 %f3, %f1;", 1),
        ("div.rn.f32 %f3, %f1, %f2;", 1),
        ("ex2.approx.ftz.f32 %f3, %f1;", 1),
        ("fma.rn.f16x2 %r3, %r1, %r2, %r3;", 4),
        ("add.f16 %h3, %h1, %h2;", 1),
        ("fma.rn.f64 %fd3, %fd1, %fd2, %fd3;", 2),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};", 64),
        ("add.s32 %r3, %r1, %r2;", 0),
        ("mad.lo.s32 %r3, %r1, %r2, %r4;", 0),
        ("mov.f32 %f1, %f2;", 0),
        ("setp.lt.f32 %p1, %f1, %f2;", 0),
        ("cvt.f32.f16 %f1, %h1;", 0),
        ("ld.global.f32 %f1, [%rd1];", 0),
        ("atom.global.add.f32 %f1, [%rd1], %f2;", 0),
        ("ret;", 0),
    ],
)
def test_flops_of_an_instruction(text: str, flops: int) -> None:
    assert flops_of_instruction(text) == flops
