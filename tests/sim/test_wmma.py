"""nvcuda::wmma on the simulator: what it stands for, and what sm_70 does not have. Results: test_programs.py."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import PtxError
from labkit.sim.counters import Counters
from labkit.sim.load import load_ptx
from labkit.sim.machine import launch
from labkit.sim.options import Observers

HEAD = ".version 8.0\n.target sm_70\n.address_size 64\n"
KERNEL = """.visible .entry k(.param .u64 a, .param .u64 d)
{{
    .reg .b64 %pa, %pd;
    .reg .b32 %a<8>, %b<8>;
    .reg .f32 %d<8>;
    ld.param.u64 %pa, [a];
    ld.param.u64 %pd, [d];
{body}
    ret;
}}
"""
A, B = ("{" + ", ".join(f"%{name}{i}" for i in range(8)) + "}" for name in "ab")
D = "{" + ", ".join(f"%d{i}" for i in range(8)) + "}"


def _kernel(body: str):
    return load_ptx(HEAD + KERNEL.format(body=body)).kernels["k"]


def test_square_of_a_matrix(seed: int) -> None:
    """Generic addresses and no stride, which is then the width of the matrix."""
    kernel = _kernel(
        f"wmma.load.a.sync.aligned.row.m16n16k16.f16 {A}, [%pa];\n"
        f"wmma.load.b.sync.aligned.row.m16n16k16.f16 {B}, [%pa];\n"
        + "".join(f"mov.f32 %d{i}, 0f00000000;\n" for i in range(8))
        + f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {D}, {A}, {B}, {D};\n"
        f"wmma.store.d.sync.aligned.row.m16n16k16.f32 [%pd+64], {D};\n"
    )
    matrix = np.random.default_rng(seed).integers(-8, 9, (16, 16)).astype(np.float16)
    result = np.zeros(16 + 256, np.float32)
    counters = Counters(kernel)
    launch(kernel, 1, 32, [matrix, result], observers=Observers(counters=counters))
    np.testing.assert_array_equal(result[16:].reshape(16, 16), matrix.astype(np.float32) @ matrix.astype(np.float32))
    assert counters.mma == 4  # one m16n16k16 is four m8n8k4 of the whole warp
    assert counters.global_store.useful_bytes == 16 * 16 * 4


@pytest.mark.parametrize(
    "instruction",
    [
        f"wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {A}, [%pa], 16;",
        f"wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {A}, [%pa], 16;",
        f"wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32 {D}, {A}, {B}, {D};",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32.satfinite {D}, {A}, {B}, {D};",
    ],
)
def test_newer_types_are_refused(instruction: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+.*wmma") as error:
        _kernel(instruction)
    assert "m16n16k16" in error.value.cure
