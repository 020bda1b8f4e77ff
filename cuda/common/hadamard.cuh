// The Hadamard rotation of a head that a warp holds, as hadamard in labkit/quant/kv.py defines it, bit for bit.
#pragma once

#include "common/reduce.cuh"

// 1 / sqrt(n), for heads that kernels are built for.
__device__ constexpr float inverse_root(int n) { return n == 64 ? 0.125f : n == 128 ? 0.08838834764831845f : 0.0625f; }

// x: elements N lane .. N lane + N - 1 of the head. Sums and differences at distance 1, 2, 4, ...: the first within a
// lane, those from distance N on with another lane. The order of the sums is part of the definition, and so is the
// rounding of the last product: __fmul_rn keeps it from being joined with what the caller subtracts.
template <int N>
__device__ __forceinline__ void rotate(float (&x)[N]) {
  static_assert(N == 2 || N == 4 || N == 8, "A head is 64, 128 or 256 elements");
#pragma unroll
  for (int distance = 1; distance < N; distance *= 2) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i & distance) continue;
      const float a = x[i], b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < WARP; lanes *= 2) {
    const float sign = threadIdx.x & lanes ? -1.0f : 1.0f;  // the upper lane has b of a - b; the product is exact
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = fmaf(x[i], sign, __shfl_xor_sync(ALL_LANES, x[i], lanes));
  }
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = __fmul_rn(x[i], inverse_root(WARP * N));
}
