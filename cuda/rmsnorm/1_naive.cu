// Idea: a block per row; each thread adds up some of the squares, then the threads add in pairs, in a tree.
// Removes the long chain of a single adder: HIDDEN dependent additions become HIDDEN / THREADS + log2(THREADS) steps.
//
// y = x / sqrt(mean(x^2) + eps) * weight, and before that x += residual in add_rmsnorm. One block per row.
//   HIDDEN         elements of a row
//   THREADS        of a block, a power of two
//   VEC            not used by this rung
//   ZERO_CENTERED  1: the weight is stored as its distance from 1
#if !defined(HIDDEN) || !defined(THREADS) || !defined(VEC) || !defined(ZERO_CENTERED)
#error "rmsnorm is compiled with -D HIDDEN, THREADS, VEC and ZERO_CENTERED"
#endif
#if THREADS & (THREADS - 1)
#error "The tree of this rung needs a power of two as THREADS"
#endif

#include <cuda_fp16.h>

__device__ __forceinline__ float tree_sum(float value) {
  __shared__ float sums[THREADS];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (threadIdx.x < half_way) sums[threadIdx.x] += sums[threadIdx.x + half_way];
    __syncthreads();
  }
  return sums[0];
}

// row, y: HIDDEN elements each; squares: this thread's part of the sum of squares of the row.
__device__ __forceinline__ void normalise(const half* row, const float* weight, half* y, float squares, float eps) {
  const float scale = rsqrtf(tree_sum(squares) / HIDDEN + eps);
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
