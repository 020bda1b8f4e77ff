// Idea: a warp computes four outputs at once, several steps along K in flight; blocks share K where outputs are few.
// Removes the wait for memory (a step brings 2 KB a warp, not 512 bytes) and three of every four loads of x.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), for up to ROWS rows of x; products and sums in fp32.
// Block (i, j) computes outputs of i over the inputs j * slice .. (j + 1) * slice - 1; see common/split_k.cuh.
//   ROWS     rows of x at most: 1, 2, 4 or 8
//   VEC      elements that move together: 8, or fewer where inputs or an address is no multiple of 8
//   THREADS  of a block, a multiple of 32
#if !defined(ROWS) || !defined(VEC) || !defined(THREADS)
#error "gemv_half is compiled with -D ROWS, VEC and THREADS"
#endif

#include "common/gemv.cuh"
#include "common/vector.cuh"

constexpr int OUTPUTS = 4;                        // of a warp
constexpr int STEP = WARP * VEC;                  // inputs of a step of a warp
constexpr int UNROLL = ROWS == 1 ? 4 : ROWS < 8 ? 2 : 1;  // steps whose loads go out together

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_half(const half* __restrict__ x, const half* __restrict__ weight, const half* __restrict__ residual,
              half* __restrict__ y, float* partials, int* arrivals, int rows, int outputs, int inputs, int slice) {
  const int first = (blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP) * OUTPUTS;
  const half* w[OUTPUTS];
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++) w[o] = weight + static_cast<long long>(min(first + o, outputs - 1)) * inputs;
  const int begin = blockIdx.y * slice, end = min(begin + slice, inputs);
  float sums[ROWS * OUTPUTS] = {};
#pragma unroll UNROLL
  for (int k = begin + threadIdx.x % WARP * VEC; k < end; k += STEP) {
    float values[OUTPUTS][VEC];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) load(w[o] + k, values[o]);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      float of_x[VEC];
      load(x + min(m, rows - 1) * inputs + k, of_x);  // no branch: a row too many is computed and not stored
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int i = 0; i < VEC; i++) sums[m * OUTPUTS + o] += values[o][i] * of_x[i];
      }
    }
  }
  finish<OUTPUTS, ROWS>(sums, first, {residual, y, partials, arrivals, rows, outputs});
}
