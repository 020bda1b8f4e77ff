// Idea: four neighbours move with one instruction and join the running pair together; warps merge through shuffles.
// Removes three of every four loads and stores, three of every four rescalings, and all barriers but one.
//
// y = exp(scale x - max) / sum(exp(scale x - max)) over a row of columns elements. One block per row. Masked elements
// may be -inf; a row of nothing else gives NaN, as in torch. The search starts at LOWEST, not at -inf, so that no
// difference of two infinities arises.
//   THREADS  of a block, a multiple of 32
//   VEC      elements that move together: 4, or fewer where columns or an address is no multiple of 4
#if !defined(THREADS) || !defined(VEC)
#error "softmax_online is compiled with -D THREADS and VEC"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr float LOWEST = -3.402823466e38f;
constexpr int WARPS = THREADS / WARP;

struct Partial {
  float largest, sum;  // sum of exp(x - largest)
};

__device__ __forceinline__ Partial include(Partial own, const float (&values)[VEC]) {
  float largest = own.largest;
#pragma unroll
  for (int j = 0; j < VEC; j++) largest = fmaxf(largest, values[j]);
  float sum = own.sum * __expf(own.largest - largest);
#pragma unroll
  for (int j = 0; j < VEC; j++) sum += __expf(values[j] - largest);
  return {largest, sum};
}

__device__ __forceinline__ Partial warp_merge(Partial own) {
  const float largest = warp_max(own.largest);
  return {largest, warp_sum(own.sum * __expf(own.largest - largest))};
}

__device__ __forceinline__ Partial block_merge(Partial own) {
  own = warp_merge(own);
  if constexpr (WARPS > 1) {
    __shared__ Partial of_warp[WARPS];
    const int lane = threadIdx.x % WARP;
    if (lane == 0) of_warp[threadIdx.x / WARP] = own;
    __syncthreads();
    own = warp_merge(lane < WARPS ? of_warp[lane] : Partial{LOWEST, 0.0f});
  }
  return own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_online(const float* __restrict__ x, float* __restrict__ y, int columns, float scale) {
  x += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  Partial row = {LOWEST, 0.0f};
  for (int i = threadIdx.x * VEC; i < columns; i += THREADS * VEC) {
    float values[VEC];
    load(x + i, values);
#pragma unroll
    for (int j = 0; j < VEC; j++) values[j] *= scale;
    row = include(row, values);
  }
  row = block_merge(row);
  const float inverse = 1.0f / row.sum;
  for (int i = threadIdx.x * VEC; i < columns; i += THREADS * VEC) {
    float values[VEC];
    load(x + i, values);
#pragma unroll
    for (int j = 0; j < VEC; j++) values[j] = __expf(values[j] * scale - row.largest) * inverse;
    store(y + i, values);
  }
}
