"""Parameters: what a declaration says, which arguments are refused, and the bytes that the rest becomes."""

from __future__ import annotations

import ctypes
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from labkit.device.compile import compile_source
from labkit.device.declaration import Declared, declared_parameters
from labkit.device.nvrtc import find_nvrtc
from labkit.device.signature import Signature, read_signature
from labkit.errors import KernelArgumentError, KernelBuildError
from labkit.sim.buffers import Out

PTX = """
.visible .entry mixed(
	.param .u64 .ptr .global .align 4 mixed_param_0,
	.param .u64 mixed_param_1,
	.param .u8 mixed_param_2,
	.param .f32 mixed_param_3,
	.param .u32 mixed_param_4,
	.param .u16 mixed_param_5,
	.param .f64 mixed_param_6,
	.param .u32 mixed_param_7,
	.param .u64 mixed_param_8
)
.maxntid 64, 2, 1
.minnctapersm 2
{
	ret;
}
.visible .entry none()
{
	ret;
}
.visible .entry structured(
	.param .align 8 .b8 structured_param_0[16]
)
{
	ret;
}
"""
SOURCE = """
/* mixed(int wrong) */
// __global__ void mixed(int wrong)
extern "C" __global__ void __launch_bounds__(128, 2)
    mixed(const half* __restrict__ x,  // read
          float *y, bool flag, float eps, int n, unsigned short s, double d, unsigned int u, long long big) {
  if (n) mixed_device(x, (y));
}
extern "C" __global__ void none() {}
extern "C" __global__ void structured(struct Pair pair) {}
"""


@pytest.fixture
def mixed() -> Signature:
    return read_signature("op/rung:mixed", PTX, "mixed", SOURCE)


def good_arguments() -> list[Any]:
    return [torch.ones(4, dtype=torch.float16), torch.ones(4), True, 0.5, -3, 7, 1e300, 2**32 - 1, -(2**63)]


def test_declarations() -> None:
    found = declared_parameters(SOURCE, "mixed")
    assert found is not None and len(found) == 9
    assert found[0] == Declared("x", "half", pointer=True, constant=True)
    assert found[1] == Declared("y", "float", pointer=True, constant=False)
    assert (found[5].type, found[8].type) == ("unsigned short", "long long")
    assert declared_parameters(SOURCE, "none") == ()
    assert declared_parameters(SOURCE, "absent") is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("const float4* const __restrict__ v", Declared("v", "float4", True, True)),
        ("float* const v", Declared("v", "float", True, False)),
        ("half const *v", Declared("v", "half", True, True)),
        ("volatile unsigned int *flags", Declared("flags", "unsigned int", True, False)),
        ("const int n", Declared("n", "int", False, True)),
        ("half* const* rows", Declared("rows", "half *", True, False)),
        ("const float **rows", Declared("rows", "float *", True, True)),
    ],
)
def test_qualifiers(words: str, expected: Declared) -> None:
    assert declared_parameters(f"__global__ void k({words}) {{}}", "k") == (expected,)


@pytest.mark.parametrize("words", ["Tile<4> t", "const float (&x)[4]", "PARAMETERS", "int x[4]"])
def test_what_cannot_be_read_is_left_open(words: str) -> None:
    assert declared_parameters(f"__global__ void k({words}) {{}}", "k") is None


def test_the_head_of_the_ptx(mixed: Signature) -> None:
    assert mixed.max_threads == 128
    assert [parameter.size for parameter in mixed.parameters] == [8, 8, 1, 4, 4, 2, 8, 4, 8]
    assert [parameter.type[0] for parameter in mixed.parameters] == ["u", "u", "u", "f", "u", "u", "f", "u", "u"]
    assert mixed.offsets == (0, 8, 16, 20, 24, 28, 32, 40, 48) and mixed.size == 56
    assert read_signature("k", PTX, "none", SOURCE).parameters == ()


def test_packing_agrees_with_a_c_struct(mixed: Signature, seed: int) -> None:
    class Block(ctypes.Structure):
        _fields_ = [
            ("x", ctypes.c_void_p),
            ("y", ctypes.c_void_p),
            ("flag", ctypes.c_bool),
            ("eps", ctypes.c_float),
            ("n", ctypes.c_int),
            ("s", ctypes.c_ushort),
            ("d", ctypes.c_double),
            ("u", ctypes.c_uint),
            ("big", ctypes.c_longlong),
        ]

    x, y = torch.zeros(8, dtype=torch.float16), torch.zeros(8)
    numbers = (bool(random.getrandbits(1)), random.random(), random.randrange(-(2**31), 2**31), random.getrandbits(16))
    more = (random.uniform(-1e300, 1e300), random.getrandbits(32), random.randrange(-(2**63), 2**63))
    values, device = mixed.values([x, y, *numbers, *more])
    packed = Block.from_buffer_copy(mixed.pack(values))
    assert device == torch.device("cpu")
    assert (packed.x, packed.y) == (x.data_ptr(), y.data_ptr())
    assert (packed.flag, packed.n, packed.s) == (numbers[0], numbers[2], numbers[3])
    assert packed.eps == np.float32(numbers[1])
    assert (packed.d, packed.u, packed.big) == more


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, None),
        (1, Out(torch.zeros(3))),
        (2, 1),
        (3, 2),
        (3, np.float32(0.25)),
        (3, math.inf),
        (3, math.nan),
        (4, np.int64(5)),
        (4, True),
        (7, 0),
        (8, 2**63 - 1),
    ],
)
def test_arguments_that_will_do(mixed: Signature, index: int, value: Any) -> None:
    arguments = good_arguments()
    arguments[index] = value
    values, _ = mixed.values(arguments)
    assert len(mixed.pack(values)) == mixed.size


@pytest.mark.parametrize(
    ("index", "value", "told"),
    [
        (0, torch.ones(4), r"argument 0 \(x\) is torch.float32, but the kernel wants torch.float16"),
        (1, torch.ones(4, dtype=torch.float16), "wants torch.float32"),
        (1, torch.ones(4, 4).t(), r"not contiguous \(strides \(1, 4\)\)"),
        (1, torch.ones(4)[::2], "not contiguous"),
        (1, torch.ones(4, device="meta"), "lies on meta, others on cpu"),
        (0, Out(torch.ones(4, dtype=torch.float16)), "only reads it"),
        (1, 12345, "is a pointer, not 12345"),
        (2, 2, "outside 0 to 1"),
        (3, "0.5", "is of type float"),
        (3, 3.5e38, "too large for float"),
        (4, 2**31, r"argument 4 \(n\) is 2147483648, outside -2147483648 to 2147483647"),
        (4, 1.0, "is of type int"),
        (4, None, "is of type int"),
        (4, torch.ones(1), "is a number of type int, not a tensor"),
        (5, -1, "outside 0 to 65535"),
        (7, -1, "outside 0 to 4294967295"),
        (7, 2**32, "outside 0"),
        (8, 2**63, "outside"),
    ],
)
def test_arguments_that_are_refused(mixed: Signature, index: int, value: Any, told: str) -> None:
    arguments = good_arguments()
    arguments[index] = value
    with pytest.raises(KernelArgumentError, match=told) as caught:
        mixed.values(arguments)
    assert "op/rung:mixed" in str(caught.value) and caught.value.cure


def test_the_number_of_arguments(mixed: Signature) -> None:
    for arguments in ([], good_arguments()[:-1], [*good_arguments(), 1]):
        with pytest.raises(KernelArgumentError, match=r"9 arguments \(x, y, flag, eps, n, s, d, u, big\)"):
            mixed.values(arguments)


def test_somebody_must_say_where_to_run(mixed: Signature) -> None:
    arguments = good_arguments()
    arguments[:2] = [None, None]
    with pytest.raises(KernelArgumentError, match="no tensor"):
        mixed.values(arguments)


def test_without_a_declaration_the_ptx_decides() -> None:
    bare = read_signature("mine", PTX, "mixed", "")
    arguments = good_arguments()
    for value in (-1, 2**32 - 1):  # either reading of 32 bits
        arguments[4] = value
        assert bare.values(arguments)[0][4] == 2**32 - 1
    arguments[0] = torch.ones(4)  # any dtype
    bare.values(arguments)
    arguments[3] = torch.ones(4)
    with pytest.raises(KernelArgumentError, match="argument 3 is a number of type f32"):
        bare.values(arguments)


def test_pointers_to_pointers_take_any_tensor() -> None:
    ptx = ".visible .entry k(\n\t.param .u64 k_param_0\n)\n{\n\tret;\n}\n"
    signature = read_signature("k", ptx, "k", "__global__ void k(half* const* rows) {}")
    addresses = torch.zeros(2, dtype=torch.int64)
    assert signature.values([addresses])[0] == [addresses.data_ptr()]


def test_structs_and_absent_kernels_are_refused() -> None:
    with pytest.raises(KernelBuildError, match="pair as a struct"):
        read_signature("mine", PTX, "structured", SOURCE)
    with pytest.raises(KernelBuildError, match="mixed, none, structured"):
        read_signature("mine", PTX, "absent", SOURCE)


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")
def test_what_the_compiler_writes_is_understood() -> None:
    types = ["const half*", "bool", "signed char", "unsigned char", "short", "int", "unsigned", "long long", "double"]
    words = ", ".join(f"{type} p{i}" for i, type in enumerate([*types, "float*"]))
    text = (
        f'#include <cuda_fp16.h>\nextern "C" __global__ void k({words}) {{ p9[0] = p1 + p2 + p3 + p4 + p5 + p6 + p7; }}'
    )
    signature = read_signature("k", compile_source(text, target="compute_70").ptx, "k", text)
    assert [parameter.size for parameter in signature.parameters] == [8, 1, 1, 1, 2, 4, 4, 8, 8, 8]
    bounds = [parameter.bounds for parameter in signature.parameters[1:8]]
    signed = {bits: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
    assert bounds == [(0, 1), signed[8], (0, 255), signed[16], signed[32], (0, 2**32 - 1), signed[64]]
