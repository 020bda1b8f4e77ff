// Idea: a thread computes one output for each row of x, and walks along its row of the weight alone.
// Removes nothing yet: neighbouring lanes read from different rows, 2 bytes of every sector.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), for up to ROWS rows of x; products and sums in fp32.
//   ROWS     rows of x at most: 1, 2, 4 or 8
//   VEC      not used by this rung
//   THREADS  of a block
#if !defined(ROWS) || !defined(VEC) || !defined(THREADS)
#error "gemv_half is compiled with -D ROWS, VEC and THREADS"
#endif

#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_half(const half* __restrict__ x, const half* __restrict__ weight, const half* __restrict__ residual,
              half* __restrict__ y, int rows, int outputs, int inputs) {
  const int n = blockIdx.x * THREADS + threadIdx.x;
  if (n >= outputs) return;
  const half* w = weight + static_cast<long long>(n) * inputs;
  float sums[ROWS] = {};
  for (int k = 0; k < inputs; k++) {
    const float value = __half2float(w[k]);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (m < rows) sums[m] += value * __half2float(x[m * inputs + k]);
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    if (m >= rows) break;
    const long long at = static_cast<long long>(m) * outputs + n;
    y[at] = __float2half_rn(sums[m] + (residual ? __half2float(residual[at]) : 0.0f));
  }
}
