"""Memory spaces as kernels see them: widths, vectors, generic pointers, local arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.sim import Out, Result, run
from labkit.sim.buffers import ADDRESS_MASK
from labkit.sim.memory import Memory

SOURCE = (Path(__file__).parent / "cuda" / "memory.cu").read_text()


def sim(name: str, grid: Any, block: Any, *args: Any, **options: Any) -> Result:
    return run(SOURCE, name=name, grid=grid, block=block, args=list(args), **options)


@pytest.mark.parametrize(("block", "n"), [(64, 48), (41, 32), (32, 32)])
def test_every_width(seed: int, block: int, n: int) -> None:
    a, room = np.random.default_rng(seed).integers(0, 256, 16 * n, dtype=np.uint8), np.zeros(63 * n + 16, np.uint8)
    o = room[-room.ctypes.data % 16 :][: 63 * n]
    result = sim("widths", 1, block, a, Out(o), n)
    assert result.ok, result
    for width, starts in {1: (0,), 2: (1,), 4: (3, 15, 59), 8: (7, 19), 16: (27, 43)}.items():
        for start in starts:
            assert (o[start * n : (start + width) * n] == a[: width * n]).all(), (width, start)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (48, 32), (37, 50), (1, 70)])
def test_transposed_tiles(seed: int, rows: int, columns: int) -> None:
    a = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    o = np.zeros((columns, rows), np.float32)
    assert sim("transpose", (-(-columns // 16), -(-rows // 16)), (16, 16), a, o, rows, columns).ok
    assert (o == a.T).all()


def test_shared_vectors(seed: int) -> None:
    a = np.random.default_rng(seed).integers(-50, 50, (3, 64, 4)).astype(np.float32)
    o = np.zeros((3, 64), np.float32)
    assert sim("shared_vectors", 3, 64, a, o).ok
    pairs = a.reshape(3, 128, 2)[:, :64]
    assert (o == a[:, ::-1] @ np.array([1, 2, 4, 8]) + pairs @ np.array([16, 32])).all()


@pytest.mark.parametrize("block", [32, 20])
def test_local_arrays(seed: int, block: int) -> None:
    a = np.random.default_rng(seed).integers(-(2**31), 2**31, 2 * block).astype(np.int32)
    o = np.zeros(2 * block, np.int32)
    assert sim("local_array", 2, block, a, o, 40).ok
    for x, found in zip(a.tolist(), o.tolist(), strict=True):
        v, r = [0] * 16, 0
        for k in range(16):
            v[(k * 5 + x) & 15] = x + k
        for k in range(40):
            r = (r * 3 + v[(r + k) & 15] + 2**31) % 2**32 - 2**31
            v[k & 15] ^= r
        assert found == r


@pytest.mark.parametrize("how", [0, 1, 2])
def test_generic_pointers(how: int) -> None:
    a, o = np.arange(64, dtype=np.int32) * 10, np.zeros(64, np.int32)
    assert sim("generic", 1, 64, a, o, how).ok
    for i in range(64):
        space = (i + how) % 3
        value = (10 * i, 1000 + i, (1, 2, 3, i)[i & 3])[space] + 5
        assert o[i] == value + (200000, 100000, 300000)[space]
        assert a[i] == 10 * i + 5 * (space == 0)


def test_lanes_in_different_buffers(seed: int) -> None:
    a, b = (np.random.default_rng(seed + k).integers(0, 99, 20).astype(np.int32) for k in range(2))
    o = np.zeros(40, np.int32)
    assert sim("uneven", 1, 40, a, b, o).ok
    assert (o[1::2] == a).all() and (o[::2] == b).all()


@pytest.mark.parametrize("block", [64, 50])
def test_the_last_thread_wins(block: int) -> None:
    o, s = np.zeros(3, np.int32), np.zeros(3, np.int32)
    result = sim("same_address", 3, block, o, s, checks=False)
    assert o.tolist() == s.tolist() == [block - 1] * 3 and not result.findings


def test_gaps_in_structs_are_no_uninitialized_memory() -> None:
    o = np.zeros(64, np.int32)
    result = sim("padded", 1, 32, o)
    assert result.ok, result
    assert o[:32].tolist() == [97 + i + (2 * i << 8) for i in range(32)]


def test_buffers_are_found_by_address() -> None:
    memory = Memory()
    first, second = np.zeros(100, np.uint8), np.zeros(7, np.uint16)
    bases = [memory.add(first, "first"), memory.add(second, "second")]
    assert memory.find(bases[0] + 99).name == "first" and memory.find(bases[1] + 13).name == "second"  # type: ignore[union-attr]
    addresses = np.array([bases[0], bases[0] + 99, bases[1], 5])
    assert [memory.buffers[place].name if place >= 0 else "" for place in memory.find_all(addresses)] == [
        "first",
        "first",
        "second",
        "",
    ]
    assert memory.find(5) is None and Memory().find(5) is None
    assert "no buffer" in Memory().nearest(5 << 20)


def test_reversed_and_empty_arrays() -> None:
    memory = Memory()
    a = np.arange(10, dtype=np.int32)
    assert memory.add(a[::-2], "reversed") & ADDRESS_MASK == a.ctypes.data + 36
    (buffer,) = memory.buffers
    assert (buffer.base, buffer.size) == (a.ctypes.data + 4, 36)
    memory.add(np.zeros(0), "empty")
    assert len(memory.buffers) == 1


NEXT = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }'


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_views_side_by_side_do_not_hide_an_overrun(kind: str) -> None:
    both: Any = torch.zeros(64) if kind == "torch" else np.zeros(64, np.float32)
    result = run(NEXT, block=32, args=[both[:32], both[32:]])
    assert [(f.kind, f.thread, f.count) for f in result.findings] == [("out-of-bounds", 31, 1)]
    assert "argument 0" in result.findings[0].text
    assert run(NEXT, block=32, args=[both[:33], torch.zeros(32)]).ok


def test_views_that_overlap_are_one_piece_of_memory(seed: int) -> None:
    """Also where a third view is what makes them overlap, and where threads of one warp come by different pointers."""
    source = """extern "C" __global__ void k(const int* a, const int* b, const int* c, int* o) {
      const int* mine = threadIdx.x % 3 == 0 ? a : threadIdx.x % 3 == 1 ? b : c;
      o[threadIdx.x] = mine[threadIdx.x] + 100 * a[threadIdx.x] + 10000 * b[threadIdx.x];
    }"""
    x, lane, o = np.random.default_rng(seed).integers(0, 99, 64).astype(np.int32), np.arange(32), np.zeros(32, np.int32)
    assert run(source, block=32, args=[x[:32], x[32:], x[10:50], Out(o)]).ok
    assert (o == x[lane + np.array([0, 32, 10])[lane % 3]] + 100 * x[:32] + 10000 * x[32:]).all()


def test_a_text_that_is_no_text() -> None:
    source = '#include <cstdio>\nextern "C" __global__ void k(const char* s) { printf("[%s][%5s]", s, "ab"); }'
    assert run(source, block=1, args=[None]).output == "[(null)][   ab]"
