"""mma.sync.m8n8k4: every layout and accumulator, and the V100's way of adding."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from labkit.sim import run
from labkit.sim.mma_volta import add_five, toward_zero

LAYOUTS = list(product(("row", "col"), ("row", "col")))
TYPES = list(product(("f32", "f16"), ("f32", "f16")))


def kernel_text(a: str, b: str, d: str, c: str) -> str:
    """A kernel that feeds one mma per warp from memory: halves of A and B per lane, elements of C and D per lane."""
    registers_d, registers_c = (8 if kind == "f32" else 4 for kind in (d, c))
    letter = {"f32": "f", "f16": "r"}
    d_list = ",".join(f"%{n}" for n in range(registers_d))
    c_list = ",".join(f"%{registers_d + 4 + n}" for n in range(registers_c))
    a_list, b_list = (f"%{registers_d + n},%{registers_d + n + 1}" for n in (0, 2))
    outputs = ",".join(f'"={letter[d]}"(D[{n}])' for n in range(registers_d))
    inputs = [f'"r"({x}[lane*2+{n}])' for x in ("a", "b") for n in range(2)]
    inputs += [f'"{letter[c]}"(c[lane*{registers_c}+{n}])' for n in range(registers_c)]
    kinds = {"f32": "float", "f16": "unsigned"}
    return f"""
extern "C" __global__ void mma_{a}_{b}_{d}_{c}(const unsigned* a, const unsigned* b, const {kinds[c]}* c, {kinds[d]}* d) {{
    int lane = blockIdx.x * blockDim.x + threadIdx.x;
    {kinds[d]} D[{registers_d}];
    asm volatile("mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c} {{{d_list}}}, {{{a_list}}}, {{{b_list}}}, {{{c_list}}};"
        : {outputs} : {", ".join(inputs)});
    for (int n = 0; n < {registers_d}; n++) d[lane * {registers_d} + n] = D[n];
}}"""


SOURCE = "\n".join(kernel_text(*layout, *types) for layout in LAYOUTS for types in TYPES) + """
extern "C" __global__ void half_a_warp(const unsigned* a, float* d) {
    if (threadIdx.x < 16) {
        float D[8];
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%8,%9}, {%10,%10,%10,%10,%10,%10,%10,%10};"
            : "=f"(D[0]), "=f"(D[1]), "=f"(D[2]), "=f"(D[3]), "=f"(D[4]), "=f"(D[5]), "=f"(D[6]), "=f"(D[7]) : "r"(a[0]), "r"(a[1]), "f"(0.f));
        d[threadIdx.x] = D[0];
    }
}"""


def place_of(lane: int) -> tuple[int, int, int]:
    """(upper half of the matrix, quad-pair, place in the quad)."""
    return lane // 16, lane // 4 % 4, lane % 4


def accumulator_place(kind: str, lane: int, element: int) -> tuple[int, int]:
    """Row and column of an element of C or D, as the PTX manual's tables give them."""
    high, _, low = place_of(lane)
    if kind == "f16":
        return 4 * high + low, element
    return 4 * high + (low & 1) + (element & 2), (element & 4) + (low & 2) + (element & 1)


def fragments(matrices: Any, column_major: bool, transposed: bool) -> Any:
    """[warps, 4, 8, 4] (A), or B as its transpose, to [warps, 32, 4] halves per lane."""
    lanes = np.zeros((len(matrices), 32, 4), np.float16)
    for lane, i in product(range(32), range(4)):
        high, quad, low = place_of(lane)
        across = column_major != transposed
        lanes[:, lane, i] = matrices[:, quad, 4 * high + i, low] if across else matrices[:, quad, 4 * high + low, i]
    return lanes


@pytest.mark.parametrize("truncating", [False, True])
@pytest.mark.parametrize(("layout_a", "layout_b"), LAYOUTS)
@pytest.mark.parametrize(("d", "c"), TYPES)
def test_layouts(seed: int, layout_a: str, layout_b: str, d: str, c: str, truncating: bool) -> None:
    rng, warps = np.random.default_rng(seed), 4
    a, b = (rng.integers(-8, 9, (warps, 4, 8, 4)).astype(np.float16) for _ in range(2))  # B transposed: [column, k]
    start = rng.integers(-99, 99, (warps, 4, 8, 8)).astype(np.float32)
    expected = a.astype(np.float32) @ b.astype(np.float32).transpose(0, 1, 3, 2) + start  # small integers: exact
    c_lanes = np.zeros((warps, 32, 8), np.float32)
    for lane, i in product(range(32), range(8)):
        row, column = accumulator_place(c, lane, i)
        c_lanes[:, lane, i] = start[:, place_of(lane)[1], row, column]
    c_array = c_lanes if c == "f32" else c_lanes.astype(np.float16)
    result = np.zeros((warps, 32, 8), np.float32 if d == "f32" else np.float16)
    name = f"mma_{layout_a}_{layout_b}_{d}_{c}"
    halves = [fragments(a, layout_a == "col", False), fragments(b, layout_b == "col", True)]
    args = [x.view(np.uint32) if x.dtype == np.float16 else x for x in (*halves, c_array, result)]
    done = run(SOURCE, name=name, grid=2, block=64, args=args, truncating_mma=truncating)
    assert done.ok, done
    for lane, i in product(range(32), range(8)):
        row, column = accumulator_place(d, lane, i)
        assert (result[:, lane, i] == expected[:, place_of(lane)[1], row, column]).all()


def test_lanes_that_stay_away_are_reported() -> None:
    a, d = np.zeros(2, np.uint32), np.ones(16, np.float32)
    done = run(SOURCE, name="half_a_warp", block=32, args=[a, d])
    assert "missing-lanes" in [finding.kind for finding in done.findings] and not d.any()


# How a V100 adds. Each case follows one finding of the paper: p0..p3, c, and what the tensor core returns.
TINY = 2.0**-24
CASES = {
    "no guard bits": ([TINY] * 4, 1.0, 1.0),
    "the same, negative": ([-TINY] * 4, -1.0, -1.0),
    "whatever the order": ([1.0, TINY, TINY, TINY], TINY, 1.0),
    "small terms alone are kept": ([TINY] * 4, 0.0, 4 * TINY),
    "toward zero, positive": ([1.0, 3 * TINY, 0, 0], 0.0, 1 + 2.0**-23),
    "toward zero, negative": ([-1.0, -3 * TINY, 0, 0], 0.0, -1 - 2.0**-23),
    "no normalisation to the right": ([TINY] * 4, 1 - TINY, 1 + 2.0**-23),
    "no normalisation to the left": ([1.0, 0, 0, 0], -(1 - TINY), 2.0**-23),
    "carries are kept": ([2.0**31 - 2.0**20] * 4, 2.0**31, 5 * 2.0**31 - 4 * 2.0**20),
    "subnormal accumulator": ([0.0] * 4, 2.0**-149, 2.0**-149),
    "subnormal halves": ([2.0**-48] * 4, 0.0, 2.0**-46),
    "infinite": ([np.inf, 1, 1, 1], 1.0, np.inf),
}


@pytest.mark.parametrize("name", CASES)
def test_published_behaviour(name: str) -> None:
    products, c, expected = CASES[name]
    terms = [np.full((2, 3), value, np.float32) for value in products]
    result = add_five(terms, np.full((2, 3), c, np.float32))
    assert result.dtype == np.float32 and (result == np.float32(expected)).all()


def test_not_monotonic() -> None:
    """The paper's consequence: a smaller c can give a larger result."""
    terms = [np.full(1, TINY, np.float32)] * 4
    larger_c, smaller_c = (add_five(terms, np.full(1, c, np.float32))[0] for c in (1.0, 1 - TINY))
    assert smaller_c > larger_c


def test_nan_and_opposite_infinities() -> None:
    terms = [np.array([np.nan, np.inf], np.float32), np.array([1, -np.inf], np.float32), *[np.ones(2, np.float32)] * 2]
    assert np.isnan(add_five(terms, np.ones(2, np.float32))).all()


def test_against_exact_integers(seed: int) -> None:
    """The same rule, one number at a time, in Python's own integers."""
    rng = np.random.default_rng(seed)
    terms = (rng.standard_normal((5, 500)) * 2.0 ** rng.integers(-20, 20, (5, 500))).astype(np.float32)
    found = add_five(list(terms[:4]), terms[4])
    for column, result in zip(terms.T, found, strict=True):
        exponent = max(int(np.frexp(float(x))[1]) for x in column) - 24
        total = sum(int(float(x) / 2.0**exponent) for x in column)
        bits = max(abs(total).bit_length() - 24, 0)
        expected = (abs(total) >> bits << bits) * (1 if total >= 0 else -1) * 2.0**exponent
        assert float(result) == expected


def test_rounding_toward_zero(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(1000)
    cut = toward_zero(values)
    assert (np.abs(cut.astype(np.float64)) <= np.abs(values)).all()
    assert (np.abs(np.nextafter(cut, np.copysign(np.inf, cut)).astype(np.float64)) > np.abs(values)).all()
