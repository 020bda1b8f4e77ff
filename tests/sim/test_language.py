"""CUDA C++ beyond the plain: 128-bit integers, files as editors save them; and what the simulator refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.device.nvrtc import find_nvrtc
from labkit.errors import PtxError
from labkit.sim import run

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC of CUDA 12 here")

WIDE = """
typedef unsigned __int128 wide;
typedef __int128 wide_signed;
__device__ __noinline__ wide_signed less(wide_signed x) { return x - 1; }
extern "C" __global__ void k(const wide* in, const wide* by, wide* out, int n) {
  const int i = threadIdx.x;
  const wide a = in[i], b = by[i];
  out[i] = a * b;
  out[n + i] = a / b;
  out[2 * n + i] = a % b;
  out[3 * n + i] = a - b;
  out[4 * n + i] = a >> (b & 127);
  out[5 * n + i] = (wide)((wide_signed)a / (wide_signed)b);
  out[6 * n + i] = a < b;
  out[7 * n + i] = (wide)less((wide_signed)a);
}
"""
CALLS = "__device__ __noinline__ int f(int n) { return n; }\n__device__ __noinline__ int g(int n) { return -n; }\n"
REFUSED = {
    "recursion": (
        "__device__ __noinline__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n / 2); }\n",
        "f(threadIdx.x)",
        "loop",
    ),
    "table of functions": (CALLS + "__device__ int (*table[2])(int) = {f, g};\n", "table[n & 1](n)", "switch"),
    "pointer to a function": (CALLS, "(n ? f : g)(n)", "switch"),
    "virtual function": (
        "struct A { __device__ virtual int f() { return 1; } };\n"
        "struct B : A { __device__ int f() override { return 2; } };\n"
        "__device__ int of(A* a, A* b, int n) { return (n ? a : b)->f(); }\n",
        "[&] { A a; B b; return of(&a, &b, n); }()",
        "switch",
    ),
    "heap": ("", "*(new int(n))", "argument"),
    "texture": ("", "(int)tex2D<float>((cudaTextureObject_t)n, 1, 2)", "array"),
}


def whole(words: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """128-bit integers of pairs of words."""
    return [int(low) | int(high) << 64 for low, high in words.reshape(-1, 2)]


def signed(number: int) -> int:
    return number - (1 << 128) if number >> 127 else number


def test_integers_of_128_bits(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 96
    a, b = random.integers(0, 1 << 64, (2, count, 2), dtype=np.uint64)
    b >>= random.integers(0, 64, (count, 2), dtype=np.uint64)
    b[::3, 1] = 0
    b[:, 0] |= 1
    out = np.zeros((8, count, 2), np.uint64)
    assert run(WIDE, block=count, args=[a, b, out, count]).ok
    for column, (x, y) in enumerate(zip(whole(a), whole(b), strict=True)):
        quotient = abs(signed(x)) // abs(signed(y)) * (1 if signed(x) * signed(y) >= 0 else -1)
        expected = [x * y, x // y, x % y, x - y, x >> (y & 127), quotient, x < y, x - 1]
        assert whole(out[:, column]) == [int(value) & (1 << 128) - 1 for value in expected], (x, y)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf// marked\n",
        "// größer, Ω\n".encode(),
        "// größer\n".encode("latin-1"),
        b"// DOS\r\n#define \\\r\n  ONE 1\r\n",
    ],
    ids=["mark", "UTF-8", "Latin-1", "CR LF"],
)
@pytest.mark.parametrize("place", ["file", "header"])
def test_files_as_editors_save_them(tmp_path: Path, content: bytes, place: str) -> None:
    kernel = b'extern "C" __global__ void k(int* out) { out[threadIdx.x] = 1; }\n'
    file = tmp_path / "k.cu"
    file.write_bytes(content + kernel if place == "file" else b'#include "h.cuh"\n' + kernel)
    (tmp_path / "h.cuh").write_bytes(content)
    out = np.zeros(4, np.int32)
    assert run(file, block=4, args=[out]).ok
    assert out.all()


def test_functions_without_device_are_device_functions() -> None:
    source = """
const float table[3] = {1, 2, 4};
static int calls;
float look(int i) { calls = 1; return table[i]; }
extern "C" __global__ void k(float* out) { out[threadIdx.x] = look(threadIdx.x) + (calls & 2); }
"""
    out = np.zeros(3, np.float32)
    run(source, block=3, args=[out])
    assert out.tolist() == [1, 2, 4]


def test_marks_for_a_profiler_do_nothing() -> None:
    out = np.zeros(3, np.int32)
    source = 'extern "C" __global__ void k(int* out) { __prof_trigger(3); out[threadIdx.x] = 1; }\n'
    assert run(source, block=3, args=[out]).ok
    assert out.all()


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_followed_is_refused(what: str) -> None:
    declarations, value, cure = REFUSED[what]
    source = declarations + f'extern "C" __global__ void k(int* out, int n) {{ *out = {value}; }}\n'
    with pytest.raises(PtxError) as caught:
        run(source, args=[np.zeros(1, np.int32), 1])
    assert cure in caught.value.cure


def test_addc_reads_the_carry_of_a_subtraction() -> None:
    """Hardware subtracts by adding the complement: it carries where it borrows nothing."""
    source = """extern "C" __global__ void k(const unsigned* a, const unsigned* b, unsigned* out) {
  const int i = threadIdx.x;
  unsigned low, high;
  asm("sub.cc.u32 %0, %2, %3; addc.u32 %1, 0, 0;" : "=r"(low), "=r"(high) : "r"(a[i]), "r"(b[i]));
  out[2 * i] = low;
  out[2 * i + 1] = high;
}
"""
    a, b = np.array([5, 5, 5], np.uint32), np.array([4, 5, 6], np.uint32)
    out = np.zeros((3, 2), np.uint32)
    assert run(source, block=3, args=[a, b, out]).ok
    assert out.tolist() == [[1, 1], [0, 1], [0xFFFFFFFF, 0]]


def test_parameters_by_computed_addresses(seed: int) -> None:
    source = """struct Table { int count; float values[20]; };
extern "C" __global__ void k(float* out, const __grid_constant__ Table table) {
  const float* row = table.values;
  out[threadIdx.x] = row[threadIdx.x % table.count] + table.values[(threadIdx.x + 1) % table.count];
}
"""
    values = np.random.default_rng(seed).standard_normal(20).astype(np.float32)
    out = np.zeros(64, np.float32)
    assert run(source, block=64, args=[out, np.int32(20).tobytes() + values.tobytes()]).ok
    assert np.array_equal(out, values[np.arange(64) % 20] + values[np.arange(1, 65) % 20])
    wild = source.replace("% table.count]", "+ 50]", 1)
    (finding,) = run(wild, block=64, args=[out, np.int32(20).tobytes() + values.tobytes()]).findings
    assert finding.kind == "out-of-bounds" and "parameters" in finding.text
