// What becomes of the sums: from the warps of a block, and the blocks that share K, to y.
#pragma once

#include <cuda_fp16.h>

#include "common/quant.cuh"
#include "common/reduce.cuh"
#include "common/split_k.cuh"

// silu(gate) up, with silu(g) = g / (1 + exp(-g)).
__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

// y [rows, width] and, of the same shape, a residual that is added before the one rounding; or null.
struct Result {
  const half* residual;
  half* y;
  int rows, width;

  __device__ __forceinline__ void store(int m, int n, float total) const {
    if (m >= rows || n >= width) return;
    const long long at = static_cast<long long>(m) * width + n;
    if (residual) total += __half2float(residual[at]);
    y[at] = __float2half_rn(total);
  }
};

// left[w][i]: sum i of warp w. Adds them up over the warps and over the gridDim.y blocks that share K, in a fixed
// order; true where left[0] holds all: in the last of those blocks. All threads of a block call it.
template <int BLOCK_WARPS, int COUNT>
__device__ __forceinline__ bool add_up(float (&left)[BLOCK_WARPS][COUNT], float* partials, int* arrivals) {
  __syncthreads();
  float* of_column = partials + static_cast<long long>(blockIdx.x) * gridDim.y * COUNT;
  for (int i = threadIdx.x; i < COUNT; i += BLOCK_WARPS * WARP) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < BLOCK_WARPS; w++) sum += left[w][i];
    left[0][i] = sum;
    if (gridDim.y > 1) of_column[blockIdx.y * COUNT + i] = sum;
  }
  if (gridDim.y > 1) {
    if (!last_to_arrive(arrivals)) return false;
    for (int i = threadIdx.x; i < COUNT; i += BLOCK_WARPS * WARP) {
      float sum = 0.0f;
      for (int split = 0; split < gridDim.y; split++) sum += __ldcg(of_column + split * COUNT + i);
      left[0][i] = sum;
    }
  }
  __syncthreads();
  return true;
}
