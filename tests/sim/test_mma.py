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
    parameters = f"const unsigned* a, const unsigned* b, const {kinds[c]}* c, {kinds[d]}* d"
    instruction = f"mma.sync.aligned.m8n8k4.{a}.{b}.{d}.f16.f16.{c}"
    operands = ", ".join("{" + text + "}" for text in (d_list, a_list, b_list, c_list))
    return f"""
extern "C" __global__ void mma_{a}_{b}_{d}_{c}({parameters}) {{
    int lane = blockIdx.x * blockDim.x + threadIdx.x;
    {kinds[d]} D[{registers_d}];
    asm volatile("{instruction} {operands};" : {outputs} : {", ".join(inputs)});
    for (int n = 0; n < {registers_d}; n++) d[lane * {registers_d} + n] = D[n];
}}"""


HALF_A_WARP = r"""
extern "C" __global__ void half_a_warp(const unsigned* a, float* d) {
    if (threadIdx.x < 16) {
        float D[8];
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%8,%9}, "
            "{%10,%10,%10,%10,%10,%10,%10,%10};"
            : "=f"(D[0]), "=f"(D[1]), "=f"(D[2]), "=f"(D[3]), "=f"(D[4]), "=f"(D[5]), "=f"(D[6]), "=f"(D[7])
            : "r"(a[0]), "r"(a[1]), "f"(0.f));
        d[threadIdx.x] = D[0];
    }
}"""
SOURCE = "\n".join(kernel_text(*layout, *types) for layout in LAYOUTS for types in TYPES) + HALF_A_WARP


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


# How a V100 adds: the experiments of Fasi, Higham, Mikaitis and Pranesh (PeerJ Computer Science 7, e330), each as the
# halves a and b of one dot product, c, and what their V100 gave. Modes: "f32" and "f16" accumulators.
BELOW_ONE, TINY, ULP = 1 - 2.0**-11, 2.0**-24, 2.0**-23  # a half, the smallest half, the gap above 1.0 as a float
EXPERIMENTS = {
    "subnormal halves": ("f32 f16", [TINY], [4], 0.0, 2.0**-22),
    "subnormal floats": ("f32", [0], [0], 2.0**-149, 2.0**-149),
    "subnormal results": ("f32 f16", [2.0**-14], [0.5], 0.0, 2.0**-15),
    "subnormal differences": ("f32 f16", [2.0**-14], [1], -(2.0**-15), 2.0**-15),
    "exact products": ("f32", [BELOW_ONE], [BELOW_ONE], 0.0, 1 - 2.0**-10 + 2.0**-22),
    "exact sums of products": ("f32", [BELOW_ONE] * 4, [BELOW_ONE] * 4, 0.0, 4 * (1 - 2.0**-10 + 2.0**-22)),
    "exact products of halves": ("f16", [BELOW_ONE] * 2, [BELOW_ONE, 2.0**-11], 0.0, 1 - 2.0**-10 + 2.0**-11),
    "single precision": ("f32", [1] * 4, [TINY] * 4, 1.0, 1.0),
    **{
        f"the largest term first, at {place}": ("f32", [1] * 4, [TINY] * place + [1] + [TINY] * (3 - place), TINY, 1.0)
        for place in range(4)
    },
    "positive toward zero": ("f32", [1, 1], [2, ULP + TINY], 0.0, 2.0),
    "negative toward zero": ("f32", [1, 1], [-2, -ULP - TINY], 0.0, -2.0),
    "halves to nearest": ("f16", [TINY, TINY], [0.5, 0.25], 0.0, TINY),
    "no guard bits": ("f32", [1], [1], -(1 - TINY), ULP),
    "no normalisation in additions": ("f32", [1] * 4, [TINY] * 4, 1 - TINY, 1 + ULP),
    "no normalisation in subtractions": ("f32", [1, 1], [1, -TINY], -1 + TINY, ULP),
    **{
        f"two carries, {place}": ("f32", [1] * 4, [1] * place + [ULP] + [1] * (3 - place), 1 + 3 * ULP, 4 + 2.0**-21)
        for place in range(4)
    },
    "a third carry": ("f32", [1] * 4, [1, 1.5, 1.75, 1.875], 1.875, 8.0),
    "positive carries cut off": ("f32", [1] * 4, [1] * 4, 1 + 3 * ULP, 5.0),
    "negative carries cut off": ("f32", [1] * 4, [-1] * 4, -1 - 3 * ULP, -5.0),
}
MODES = [(name, mode) for name, experiment in EXPERIMENTS.items() for mode in experiment[0].split()]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_published_experiments(name: str, mode: str) -> None:
    _, a, b, c, expected = EXPERIMENTS[name]
    halves = np.zeros((2, 32, 4), np.float16)  # lane 0 has row 0 of A and column 0 of B
    halves[0, 0, : len(a)], halves[1, 0, : len(b)] = a, b
    c_array = np.zeros((32, 8), np.float32 if mode == "f32" else np.float16)
    c_array[0, 0] = c
    args = [halves[0].view(np.uint32), halves[1].view(np.uint32), c_array, np.zeros_like(c_array)]
    args = [x.view(np.uint32) if x.dtype == np.float16 else x for x in args]
    assert run(SOURCE, name=f"mma_row_col_{mode}_{mode}", block=32, args=args, truncating_mma=True).ok
    result = args[3].view(c_array.dtype)
    assert result[0, 0] == expected and np.count_nonzero(result) <= 1


def test_infinities() -> None:
    terms = [np.full(2, value, np.float32) for value in (np.inf, 1, 1, 1)]
    assert np.isposinf(add_five(terms, np.ones(2, np.float32))).all()


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
