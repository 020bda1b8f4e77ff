"""The checks of chapter 02 accept what is right and fast, and name what is wrong or slow."""

from __future__ import annotations

import pytest

from labkit.lab.exercises.coalescing import check_doubled, check_transpose

DOUBLED = """
extern "C" __global__ void doubled(const float* x, float* y, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = i / cols, col = i % cols;
    if (i < rows * cols) y[row * cols + col] = 2.0f * x[row * cols + col];
}
"""
TILED = """
extern "C" __global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int col = blockIdx.x * 32 + threadIdx.x, i = threadIdx.x;
    int row = blockIdx.y * 32 + threadIdx.y, j = threadIdx.y;
    if (row < rows && col < cols) tile[j][i] = x[row * cols + col];
    __syncthreads();
    col = blockIdx.y * 32 + threadIdx.x;
    row = blockIdx.x * 32 + threadIdx.y;
    if (row < cols && col < rows) y[row * rows + col] = tile[i][j];
}
"""
UNPADDED = TILED.replace("[33]", "[32]")
SWIZZLED = UNPADDED.replace("tile[j][i]", "tile[j][i ^ j]").replace("tile[i][j]", "tile[i][j ^ i]")
NAIVE = """
extern "C" __global__ void transpose(const float* x, float* y, int rows, int cols) {
    int col = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    if (row < rows && col < cols) y[col * rows + row] = x[row * cols + col];
}
"""


def test_right_solutions_pass(seed: int) -> None:
    assert check_doubled(DOUBLED, seed).startswith("Right")
    assert check_transpose(TILED, seed).startswith("Right")
    assert check_transpose(SWIZZLED, seed).startswith("Right")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (DOUBLED.replace("i / cols, col = i % cols", "i % rows, col = i / rows"), "slow. .*loads take 32.0 sectors"),
        (DOUBLED.replace("if (i < rows * cols) ", ""), "out-of-bounds"),
        (DOUBLED.replace("i < rows * cols", "i + 1 < rows * cols"), "1 elements were not written"),
        (DOUBLED.replace("2.0f", "3.0f"), "not 2 x everywhere"),
        (DOUBLED.replace("int i", "int i;"), "does not compile"),
    ],
)
def test_wrong_doublings_get_a_hint(source: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_doubled(source)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (NAIVE, "Stores take 32.0 sectors"),
        (UNPADDED, "bank conflicts"),
        (TILED.replace("__syncthreads();", ""), "shared-race"),
        (TILED.replace("tile[i][j];", "tile[j][i];"), "not the transpose|uninitialized"),
        (TILED.replace("row < cols && col < rows", "row < rows && col < cols"), "uninitialized"),
        (SWIZZLED.replace("tile[i][j ^ i]", "tile[i][j]"), "uninitialized|not the transpose"),
    ],
)
def test_wrong_transposes_get_a_hint(source: str, hint: str) -> None:
    with pytest.raises(AssertionError, match=hint):
        check_transpose(source)
