// All of a weight, column after column and each along K, divided evenly among the blocks of a launch: however many
// columns there are, the multiprocessors end together.
#pragma once

#include "awq_gemv/result.cuh"
#include "common/split_k.cuh"

// ``steps`` of each column; gridDim.x times all steps fits 32 bits. A block may begin and end inside a column: it then
// leaves its sums in one of two places of its own, and the last block of the column to arrive adds them up.
struct Division {
  unsigned steps, all;

  __device__ __forceinline__ unsigned begin(unsigned block) const { return block * all / gridDim.x; }
  __device__ __forceinline__ unsigned block_of(unsigned step) const { return ((step + 1) * gridDim.x - 1) / all; }
  // 0 for the first column of a block, 1 for its last.
  __device__ __forceinline__ unsigned place(unsigned block, unsigned column) const {
    return 2 * block + (begin(block) / steps != column);
  }
};

// left[w][i]: sum i of warp w. Adds them up, and what other blocks have of the column, in a fixed order; true where
// left[0] holds all: in the last of those blocks. All threads of a block call it.
template <int BLOCK_WARPS, int COUNT>
__device__ __forceinline__ bool add_column(float (&left)[BLOCK_WARPS][COUNT], const Division& division, unsigned column,
                                           float* partials, int* arrivals) {
  const unsigned first = division.block_of(column * division.steps);
  const unsigned last = division.block_of(column * division.steps + division.steps - 1);
  float* mine = partials + static_cast<long long>(division.place(blockIdx.x, column)) * COUNT;
  __syncthreads();
  for (int i = threadIdx.x; i < COUNT; i += blockDim.x) {
    float sum = left[0][i];
#pragma unroll
    for (int w = 1; w < BLOCK_WARPS; w++) sum += left[w][i];
    left[0][i] = sum;
    if (first < last) mine[i] = sum;
  }
  if (first < last) {
    if (!last_to_arrive(arrivals + column, static_cast<int>(last - first + 1))) return false;
    for (int i = threadIdx.x; i < COUNT; i += blockDim.x) {
      float sum = 0.0f;
      for (unsigned block = first; block <= last; block++) {
        sum += __ldcg(partials + static_cast<long long>(division.place(block, column)) * COUNT + i);
      }
      left[0][i] = sum;
    }
  }
  __syncthreads();
  return true;
}
