"""Small CUDA sources, and a folder of operations made for one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.device import image, kernel, sources

SCALE = """
#include <cuda_fp16.h>
#include "common/twice.cuh"
#if !defined(WIDTH)
#error "scale is compiled with -D WIDTH"
#endif
// y = twice(x) * factor, for n elements.
extern "C" __global__ void __launch_bounds__(256)
    scale(const float* __restrict__ x, float* __restrict__ y, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]) * factor;
}

extern "C" __global__ void fill(half* y, unsigned int n, long long value, bool odd, void* anything) {
  if (threadIdx.x < n) y[threadIdx.x] = __int2half_rn(static_cast<int>(value) + odd);
}
"""
TWICE = "#pragma once\n__device__ inline float twice(float x) { return 2.0f * x; }\n"


def make_operations(root: Path) -> Path:
    """A folder like cuda/: one operation, scale, with the rungs 1_plain and 2_same."""
    for name, text in (("scale/1_plain.cu", SCALE), ("scale/2_same.cu", SCALE), ("common/twice.cuh", TWICE)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def forget_kernels() -> None:
    """What this process remembers of kernels it has loaded."""
    for remembered in (kernel._facts, image.open_folder):
        remembered.cache_clear()


def use_operations(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels come from this folder for the rest of the test."""
    made = make_operations(root)
    monkeypatch.setattr(sources, "source_root", lambda: made)
    forget_kernels()
    return made
