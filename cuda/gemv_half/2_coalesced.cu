// Idea: a warp computes one output: its lanes take 16 bytes each, side by side, and add up their sums in a butterfly.
// Removes the scattered reads: every sector that is moved is used whole, and a load moves eight weights.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), for up to ROWS rows of x; products and sums in fp32.
//   ROWS     rows of x at most: 1, 2, 4 or 8
//   VEC      elements that move together: 8, or fewer where inputs or an address is no multiple of 8
//   THREADS  of a block, a multiple of 32
#if !defined(ROWS) || !defined(VEC) || !defined(THREADS)
#error "gemv_half is compiled with -D ROWS, VEC and THREADS"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_half(const half* __restrict__ x, const half* __restrict__ weight, const half* __restrict__ residual,
              half* __restrict__ y, int rows, int outputs, int inputs) {
  const int n = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (n >= outputs) return;
  const half* w = weight + static_cast<long long>(n) * inputs;
  float sums[ROWS] = {};
  for (int k = lane * VEC; k < inputs; k += WARP * VEC) {
    float values[VEC];
    load(w + k, values);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (m >= rows) break;
      float of_x[VEC];
      load(x + m * inputs + k, of_x);
#pragma unroll
      for (int i = 0; i < VEC; i++) sums[m] += values[i] * of_x[i];
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    if (m >= rows) break;
    const float total = warp_sum(sums[m]);
    const long long at = static_cast<long long>(m) * outputs + n;
    if (lane == 0) y[at] = __float2half_rn(total + (residual ? __half2float(residual[at]) : 0.0f));
  }
}
