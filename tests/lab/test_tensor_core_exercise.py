"""The checks of chapter 04 accept every right answer, and say what is wrong with the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labkit.lab.exercises.tensor_cores import check_places, check_product

Place = Callable[[int, int], tuple[int, int]]


def place(lane: int, i: int) -> tuple[int, int]:
    return (lane & 1) + (i & 2) + 4 * (lane // 16), (lane & 2) + (i & 4) + (i & 1)


def test_the_right_places_pass() -> None:
    assert check_places(place).startswith("Right")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda lane, i: place(lane, i)[::-1], "Which bits of the lane's number"),
        (lambda lane, i: (lane % 4 + 4 * (lane // 16), i), r"c0 of lane 1|c\d of lane"),
        (lambda lane, i: place(lane % 16, i), "c0 of lane 16 is at"),
        (lambda lane, i: 0, "Return two numbers"),
    ],
)
def test_wrong_places_get_a_hint(wrong: Place, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_places(wrong)


PRODUCT = """#include "common/mma.cuh"
extern "C" __global__ void product(const half* x, const half* w, float* y, int k) {
    int lane = threadIdx.x, q = lane / 4 % 4, r = fragment_row(lane);
    int row = 8 * (q % 2), col = 8 * (q / 2);
    float d[8] = {};
    for (int i = 0; i < k; i += 4) {
        uint2 a = *(const uint2*)(x + (row + r) * k + i), b = *(const uint2*)(w + (col + r) * k + i);
        mma_m8n8k4(d, a.x, a.y, *(half2*)&b.x, *(half2*)&b.y);
    }
    for (int i = 0; i < 8; i++) {
        int m = row + accumulator_row(lane, i), n = col + (lane & 2) + (i & 4) + (i & 1);
        y[16 * m + n] = d[i];
    }
}
"""
OTHER_SQUARE = PRODUCT.replace("8 * (q % 2), col = 8 * (q / 2)", "8 * (q / 2), col = 8 * (q % 2)")
IN_LINE = """#include "common/mma.cuh"
extern "C" __global__ void product(const half* x, const half* w, float* y, int k) {
    int lane = threadIdx.x, q = lane / 4 % 4, r = fragment_row(lane);
    float d[2][8] = {};
    for (int i = 0; i < k; i += 4) {
        uint2 b = q < 2 ? *(const uint2*)(w + (8 * q + r) * k + i) : uint2{};
        for (int m = 0; m < 2; m++) {
            uint2 a = *(const uint2*)(x + (8 * m + r) * k + i);
            mma_m8n8k4(d[m], a.x, a.y, *(half2*)&b.x, *(half2*)&b.y);
        }
    }
    for (int m = 0; m < 2 && q < 2; m++)
        for (int i = 0; i < 8; i++)
            y[16 * (8 * m + accumulator_row(lane, i)) + accumulator_column(lane, i)] = d[m][i];
}
"""
PLAIN = """#include <cuda_fp16.h>
extern "C" __global__ void product(const half* x, const half* w, float* y, int k) {
    for (int e = threadIdx.x; e < 256; e += 32) {
        float sum = 0;
        for (int i = 0; i < k; i++) sum += __half2float(x[e / 16 * k + i]) * __half2float(w[e % 16 * k + i]);
        y[e] = sum;
    }
}
"""


@pytest.mark.parametrize("source", [PRODUCT, OTHER_SQUARE])
def test_both_squares_pass(source: str, seed: int) -> None:
    assert check_product(source, seed).startswith("Right")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (IN_LINE, "k = 4: right, but with 2 mma"),
        (PLAIN, "no tensor core was used"),
        (PRODUCT.replace("i < 8; i++) {", "i < 7; i++) {"), "32 results were not written"),
        (PRODUCT.replace("y[16 * m + n]", "y[16 * n + m]"), "the transpose"),
        (PRODUCT.replace("(lane & 2)", "(lane & 2) / 2"), "global-race"),
        (PRODUCT.replace("(col + r) * k", "col * k"), "of 256 are wrong. Which row of x and which row of w"),
        (PRODUCT.replace("i < k", "i < k - 4"), "k = 4: y.* is 0.000"),
        (PRODUCT.replace("i < k", "i <= k"), "out-of-bounds"),
        (PRODUCT.replace("float d[8] = {}", "float d[8] = {}; if (lane == 7) return"), "missing-lanes"),
        (PRODUCT.replace("mma_m8n8k4", "mma"), "does not compile"),
    ],
)
def test_wrong_products_get_a_hint(source: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_product(source)
