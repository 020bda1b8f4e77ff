"""Arguments of a user's kernel: converted or refused, never reinterpreted, however the kernel is declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from labkit.device.declaration import Declared
from labkit.errors import ConfigError, KernelArgumentError, KernelBuildError, KernelLaunchError
from labkit.sim import Out, run
from labkit.sim.declarations import declared_from, declared_types
from labkit.sim.source import load_program
from labkit.sim.symbols import is_called, split_parameters

NUMBERS = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { short a; };
extern "C" __global__ void k(float f, double d, int i, short s, half h, __nv_bfloat16 b, double* y) {
  y[0] = f; y[1] = d; y[2] = i; y[3] = s; y[4] = __half2float(h); y[5] = __bfloat162float(b);
}
extern "C" __global__ void structured(Pair pair, double* y) { y[0] = pair.a; }
"""
GOOD: list[Any] = [1.0, 2.0, 3, 4, 5.0, 6.0]


def numbers(position: int, value: Any) -> float:
    """What the kernel sees where ``value`` is given for one of its parameters."""
    y = np.zeros(6)
    run(NUMBERS, "k", block=1, args=[*GOOD[:position], value, *GOOD[position + 1 :], y])
    return float(y[position])


def test_numbers_are_converted_to_the_type_of_their_parameter(seed: int) -> None:
    random = np.random.default_rng(seed)
    for position in range(6):
        whole = int(random.integers(-100, 100))
        kinds: list[Callable[[int], Any]] = [int, np.int8, np.int32, np.int64, np.array]
        kinds += [float, np.float16, np.float32, np.float64]
        for kind in kinds[: 5 if position in (2, 3) else None]:
            assert numbers(position, kind(whole)) == whole, (position, kind)
    fraction = float(random.uniform(-8, 8))
    assert numbers(0, fraction) == np.float32(fraction) and numbers(1, np.float32(fraction)) == np.float32(fraction)
    assert numbers(4, fraction) == np.float16(fraction)
    assert numbers(5, fraction) == float(torch.tensor(fraction).bfloat16())
    assert numbers(2, np.bool_(True)) == 1 and numbers(4, float("inf")) == float("inf") and numbers(4, 65519) == 65504


@pytest.mark.parametrize(
    ("position", "value", "words"),
    [
        (0, 2**2000, "argument 0 .f. is too large for float"),
        (1, 2**2000, "too large for double"),
        (0, 1e39, "too large for float"),
        (4, 65520, "too large for half"),
        (5, 3.4e38, "too large for __nv_bfloat16"),
        (2, np.float32(2), "of type int, not 2.0"),
        (3, 1.5, "of type short, not 1.5"),
        (3, 40_000, "outside -32768 to 32767"),
        (2, 10**4000, "argument 2 .i. is an int of 13288 bits"),
        (0, "1", "of type float"),
        (4, "1", "of type half"),
        (4, b"123", "has 2 bytes, not 3"),
        (4, None, "of type half"),
        (4, np.zeros(2, np.float16), "struct of 2 bytes, not a tensor"),
        (2, 1j, "of type int"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(position: int, value: Any, words: str) -> None:
    with pytest.raises(KernelArgumentError, match=words):
        numbers(position, value)


def test_structs_take_bytes_and_nothing_else() -> None:
    y = np.zeros(1)
    pair = np.array([(-7,)], dtype=[("a", np.int16)])
    for given in (pair.tobytes(), pair[0]):
        assert run(NUMBERS, "structured", block=1, args=[given, y]).ok and y[0] == -7
    for wrong in (1, 1.5, np.float16(1), torch.zeros(1)):
        with pytest.raises(KernelArgumentError, match=r"argument 0 .pair. is a struct of 2 bytes"):
            run(NUMBERS, "structured", block=1, args=[wrong, y])


def test_ptx_alone_still_tells_numbers_from_structs() -> None:
    y = np.zeros(6)
    ptx = load_program(NUMBERS, "k").ptx
    assert run(ptx, "k", block=1, args=[1, 2, 3, 4, np.float16(5), b"\0\0", y]).ok and y.tolist() == [1, 2, 3, 4, 5, 0]
    with pytest.raises(KernelArgumentError, match="argument 4 is a struct"):
        run(ptx, "k", block=1, args=[1, 2, 3, 4, 5, b"\0\0", y])
    with pytest.raises(KernelArgumentError, match="argument 6 is not contiguous"):
        run(ptx, "k", block=1, args=[1, 2, 3, 4, b"\0\0", b"\0\0", np.zeros(12)[::2]])


HEAD = """#include <cuda_fp16.h>
typedef float real;
using Real = real;
struct Pair { int a; };
#define KERNEL(name) extern "C" __global__ void name
"""
BODY = " { o[threadIdx.x] = 1; }"
DECLARATIONS = {
    "a half beside it": f'extern "C" __global__ void k(half h, float* o){BODY}',
    "a struct beside it": f'extern "C" __global__ void k(Pair p, float* o){BODY}',
    "C++": f"__global__ void k(half h, float* o){BODY}",
    "a namespace": f"namespace space {{ __global__ void k(half h, float* o){BODY} }}",
    "C in a namespace": f'namespace space {{ extern "C" __global__ void k(half h, float* o){BODY} }}',
    "a template": f"template <class T> __global__ void k(half h, T* o){BODY}"
    "template __global__ void k<float>(half, float*);",
    "a typedef": f'extern "C" __global__ void k(half h, real* o){BODY}',
    "using": f'extern "C" __global__ void k(half h, Real* o){BODY}',
    "a macro": f"KERNEL(k)(half h, float* o){BODY}",
    "a macro for the type": f'extern "C" __global__ void k(half h, TYPE* o){BODY}',
    "an array": f'extern "C" __global__ void k(half h, float o[]){BODY}',
    "a block of C": f'extern "C" {{ __global__ void k(half h, float* o){BODY} }}',
    "code left out": f"""#if 0
extern "C" __global__ void k(half h, double* o);
#endif
extern "C" __global__ void k(half h, float* o){BODY}""",
}


@pytest.mark.parametrize("how", list(DECLARATIONS))
def test_arrays_are_checked_however_the_kernel_is_declared(how: str) -> None:
    def launch(array: Any) -> Any:
        first = b"\0\0\0\0" if "struct" in how else 1.0
        return run(HEAD + DECLARATIONS[how], block=64, args=[first, array], macros={"TYPE": "float"})

    for good in (np.zeros(64, np.float32), torch.zeros(64), Out(torch.zeros(64))):
        assert launch(good).ok
    with pytest.raises(KernelArgumentError, match=r"argument 1.* is torch.float64, but the kernel wants torch.float32"):
        launch(np.zeros(64))
    for strided in (
        np.zeros(128, np.float32)[::2],
        torch.zeros(64, 2)[:, 0],
        np.asfortranarray(np.zeros((8, 8), "f4")),
    ):
        with pytest.raises(KernelArgumentError, match=r"argument 1.* is not contiguous"):
            launch(strided)


def test_types_that_the_compiler_tells() -> None:
    source = (
        f"{HEAD}template <class T, int N> struct Vector {{ T of[N]; }};\nnamespace space {{ enum Kind {{ ONE }}; }}\n"
    )
    words = (
        "const real* const x, Vector<float, 3> v, const half* const* rows, space::Kind kind, void* any, float (*m)[4]"
    )
    found = declared_types(load_program(f"{source}KERNEL(k)({words}) {{}}"))
    expected = [
        Declared("", "float", pointer=True, constant=True),
        Declared("", "Vector<float, 3>", pointer=False, constant=False),
        Declared("", "__half *", pointer=True, constant=True),
        Declared("", "space::Kind", pointer=False, constant=False),
        Declared("", "void", pointer=True, constant=False),
    ]
    assert found[:5] == expected and found[5] is not None and found[5].pointer
    assert declared_from("int const volatile*", "n") == Declared("n", "int", pointer=True, constant=True)


def test_what_a_tensor_must_be() -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    fixed = np.frombuffer(np.arange(64, dtype=np.float32).tobytes(), np.float32)
    y = torch.zeros(64)
    assert run(source, args=[fixed, y]).ok and (y.numpy() == fixed).all()
    assert run(source, args=[torch.ones(64, requires_grad=True), y]).ok
    for wrong, words in (
        (fixed, "argument 1 .y. is a read-only array"),
        (Out(fixed), "argument 1 .y. is a read-only array"),
        (torch.zeros(64, requires_grad=True), "argument 1 .y. requires gradients"),
        (torch.zeros(64).to_sparse(), "argument 1 .y. is a tensor of layout torch.sparse_coo"),
        (np.zeros(64, np.float32)[::-1], "argument 1 .y. is a NumPy array .*negative"),
        (Out(5), "Out of 5"),
        (5, "is a pointer, not 5"),
    ):
        with pytest.raises(KernelArgumentError, match=words):
            run(source, args=[fixed, wrong])


def test_a_kernel_that_breaks_its_promise_cannot_write_to_a_read_only_array() -> None:
    source = 'extern "C" __global__ void k(const int* x) { *const_cast<int*>(x) = 5; }'
    fixed = np.frombuffer(bytes(4), np.int32)
    assert run(source, block=1, args=[fixed]).ok and fixed[0] == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grid": 2**31 - 1, "block": 1024}, KernelLaunchError, "too large to simulate"),
        ({"shared_bytes": 1.5}, KernelArgumentError, "shared_bytes is 1.5"),
        ({"shared_bytes": "8"}, KernelArgumentError, "shared_bytes is '8'"),
        ({"block": np.array([4.5])}, KernelArgumentError, "the block is"),
        ({"grid": "4"}, KernelArgumentError, "the grid is '4'"),
        ({"source": None}, KernelBuildError, "The source is None"),
        ({"source": b"x"}, KernelBuildError, "The source is b'x'"),
        ({"source": ""}, KernelBuildError, "The source is ''"),
        ({"source": "a\0b"}, KernelBuildError, "cannot be read"),
        ({"name": 5}, KernelBuildError, "name of the kernel is 5"),
        ({"macros": ["A=1"]}, KernelBuildError, "macros are"),
        ({"macros": {"A": None}}, KernelBuildError, "macro A is None"),
        ({"macros": {1: 2}}, KernelBuildError, "macros are"),
        ({"max_steps": 0}, ConfigError, "max_steps is 0"),
        ({"max_steps": 1.5}, ConfigError, "max_steps is 1.5"),
        ({"shuffle_seed": "x"}, ConfigError, "shuffle_seed is 'x'"),
    ],
)
def test_everything_else_that_is_wrong_has_its_error(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"source": 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = 1; }', "args": [np.zeros(64, np.int32)]}
    with pytest.raises(error, match=words):
        run(**(given | change))


def test_sizes_may_be_arrays_and_numpy_integers() -> None:
    x = np.zeros(64, np.int32)
    source = 'extern "C" __global__ void k(int* x) { atomicAdd(x + threadIdx.x, 1); }'
    assert run(source, grid=np.array([2, 1]), block=np.array([64]), args=[x]).ok
    assert run(source, grid=np.int64(2), block=[64, 1], args=[x], shared_bytes=np.int32(16)).ok  # type: ignore[arg-type]
    assert (x == 4).all()


@pytest.mark.parametrize(
    ("static", "dynamic", "words"),
    [(12_288, 0, ""), (12_289, 0, "static shared memory"), (12_000, 50_304, ""), (12_000, 50_308, "50308 bytes")],
)
def test_shared_memory_is_limited_as_on_a_v100(static: int, dynamic: int, words: str) -> None:
    source = f"""extern "C" __global__ void k(float* y) {{
      __shared__ float fixed[{static}];
      fixed[threadIdx.x] = threadIdx.x;
      __syncthreads();
      y[threadIdx.x] = fixed[63 - threadIdx.x];
    }}"""
    y = np.zeros(64, np.float32)
    if not words:
        assert run(source, args=[y], shared_bytes=dynamic).ok and y[0] == 63
        return
    with pytest.raises(KernelLaunchError, match=words):
        run(source, args=[y], shared_bytes=dynamic)


NAMES = """
extern "C" __global__ void plain(int* o) { o[0] = 1; }
namespace space {
__global__ void inside(int* o) { o[0] = 2; }
template <class T, int N> __global__ void made(T* o) { o[0] = N; }
template __global__ void made<double, 3>(double*);
template __global__ void made<int, 4>(int*);
}
__global__ void both(int* o) { o[0] = 5; }
__global__ void both(float* o) { o[0] = 6; }
static __global__ void hidden(int* o) { o[0] = 7; }
namespace { __global__ void unnamed(int* o) { o[0] = 8; } }
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plain", 1),
        ("inside", 2),
        ("space::inside", 2),
        ("made<int,4>", 4),
        ("space::made<int, 4>", 4),
        ("both(int*)", 5),
        ("both( int * )", 5),
        ("hidden", 7),
        ("unnamed", 8),
    ],
)
def test_kernels_go_by_their_names_in_cpp(name: str, value: int) -> None:
    o = np.zeros(1, np.int32)
    result = run(NAMES, name, block=1, args=[o])
    assert result.ok and o[0] == value and "_Z" not in repr(result)


def test_names_that_say_too_little_get_the_list() -> None:
    with pytest.raises(
        KernelBuildError, match=r"2 kernels 'made'.*space::made<double, 3>\(double\*\); space::made<int, 4>"
    ):
        run(NAMES, "made")
    with pytest.raises(KernelBuildError, match=r"2 kernels 'both'.*both\(int\*\); both\(float\*\)"):
        run(NAMES, "both")
    with pytest.raises(KernelBuildError, match=r"no kernel 'other'.*plain; .*space::inside\(int\*\)"):
        run(NAMES, "other")


def test_names_taken_apart() -> None:
    assert split_parameters("a::k<b<int, 3>, 4>(b<int, 3>*, float (*) [4])") == (
        "a::k<b<int, 3>, 4>",
        ["b<int, 3>*", "float (*) [4]"],
    )
    assert split_parameters("k()") == ("k", []) and split_parameters("k") == ("k", None)
    assert is_called("_ZN1n1kIdLi3EEEvPT_", "k<double,3>") and not is_called("_ZN1n1kIdLi3EEEvPT_", "k<double,4>")


def test_macros_have_no_place_in_ptx() -> None:
    ptx = load_program(NAMES, "plain").ptx
    with pytest.raises(KernelBuildError, match="is PTX"):
        run(ptx, "plain", block=1, args=[np.zeros(1, np.int32)], macros={"A": 1})


def test_registers_are_limited_as_on_a_v100() -> None:
    steps = "".join(f"float a{i} = x[{i} * threadIdx.x]; " for i in range(100))
    total = " ".join(f"x[{i}] = a{i} * a{(i * 7 + 3) % 100};" for i in range(100))
    body = f"{steps} __syncthreads(); if (threadIdx.x == 5) {{ {total} }}"
    source = f'extern "C" __global__ void BOUNDS k(float* x) {{ {body} }}'
    x = np.zeros(102_400, np.float32)
    with pytest.raises(KernelLaunchError, match=r"1024 threads with \d+ registers"):
        run(source, block=1024, args=[x], macros={"BOUNDS": ""}, checks=False)
    for threads, bounds in ((256, ""), (1024, "__launch_bounds__(1024)")):
        assert run(source, block=threads, args=[x], macros={"BOUNDS": bounds}, checks=False).finished
