// Idea: lanes of a warp add through their registers, with shuffles; only one number per warp goes to shared memory.
// Removes all barriers but one, and the trips of every partial sum through shared memory.
//
// y = x / sqrt(mean(x^2) + eps) * weight, and before that x += residual in add_rmsnorm. One block per row.
//   HIDDEN         elements of a row
//   THREADS        of a block, a multiple of 32
//   VEC            not used by this rung
//   ZERO_CENTERED  1: the weight is stored as its distance from 1
#if !defined(HIDDEN) || !defined(THREADS) || !defined(VEC) || !defined(ZERO_CENTERED)
#error "rmsnorm is compiled with -D HIDDEN, THREADS, VEC and ZERO_CENTERED"
#endif

#include <cuda_fp16.h>

#include "common/reduce.cuh"

// row, y: HIDDEN elements each; squares: this thread's part of the sum of squares of the row.
__device__ __forceinline__ void normalise(const half* row, const float* weight, half* y, float squares, float eps) {
  const float scale = rsqrtf(block_sum<THREADS>(squares) / HIDDEN + eps);
  for (int i = threadIdx.x; i < HIDDEN; i += THREADS) {
    const float gain = ZERO_CENTERED ? 1.0f + weight[i] : weight[i];
    y[i] = __float2half_rn(__half2float(row[i]) * scale * gain);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm(const half* __restrict__ x, const float* __restrict__ weight, half* __restrict__ y, float eps) {
  const long long start = static_cast<long long>(blockIdx.x) * HIDDEN;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < HIDDEN; i += THREADS) {
    const float value = __half2float(x[start + i]);
    squares += value * value;
  }
  normalise(x + start, weight, y + start, squares, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_rmsnorm(half* __restrict__ x, const half* __restrict__ residual, const float* __restrict__ weight,
                half* __restrict__ y, float eps) {
  const long long start = static_cast<long long>(blockIdx.x) * HIDDEN;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < HIDDEN; i += THREADS) {
    const half sum = __float2half_rn(__half2float(x[start + i]) + __half2float(residual[start + i]));
    x[start + i] = sum;
    squares += __half2float(sum) * __half2float(sum);
  }
  normalise(x + start, weight, y + start, squares, eps);
}
