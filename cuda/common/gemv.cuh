// From the sums that the lanes of a warp hold to the results of a GEMV with several outputs and rows of x.
#pragma once

#include <cuda_fp16.h>

#include "common/reduce.cuh"
#include "common/split_k.cuh"

// Adds up COUNT (a power of two, at most 32) sums over the warp; a lane gets the total of number lane % COUNT. At each
// step a lane hands half of its sums to its partner and takes over the partner's share of the other half: COUNT - 1
// shuffles, and a few more where COUNT < 32, in place of five for every sum.
template <int COUNT>
__device__ __forceinline__ float shared_totals(float (&sums)[COUNT]) {
  static_assert(COUNT <= WARP && (COUNT & (COUNT - 1)) == 0, "COUNT is a power of two, at most 32");
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int half_way = COUNT / 2; half_way > 0; half_way /= 2) {
    const bool upper = lane & half_way;
#pragma unroll
    for (int i = 0; i < half_way; i++) {
      const float kept = upper ? sums[i + half_way] : sums[i], given = upper ? sums[i] : sums[i + half_way];
      sums[i] = kept + __shfl_xor_sync(ALL_LANES, given, half_way);
    }
  }
  float total = sums[0];
#pragma unroll
  for (int distance = COUNT; distance < WARP; distance *= 2) total += __shfl_xor_sync(ALL_LANES, total, distance);
  return total;
}

// What a GEMV writes: y [rows, outputs], with residual (or null) of the same shape added before the one rounding.
struct Result {
  const half* residual;
  half* y;
  float* partials;  // [gridDim.y, rows, outputs] where gridDim.y > 1
  int* arrivals;    // a counter for each blockIdx.x where gridDim.y > 1
  int rows, outputs;

  __device__ __forceinline__ void store(long long at, float total) const {
    if (residual) total += __half2float(residual[at]);
    y[at] = __float2half_rn(total);
  }
};

// sums[m * OF_WARP + o]: the lane's part of output first + o for row m of x. All threads of the block call it, once.
// Where blocks share K, the last of them adds up what all have left, in a fixed order.
template <int OF_WARP, int X_ROWS>  // not OUTPUTS and ROWS: those are names of the kernels
__device__ __forceinline__ void finish(float (&sums)[X_ROWS * OF_WARP], int first, const Result& result) {
  const float total = shared_totals(sums);
  const int lane = threadIdx.x % WARP;
  const int row = lane / OF_WARP, output = first + lane % OF_WARP;
  const bool mine = row < min(X_ROWS, result.rows) && output < result.outputs;
  const long long at = static_cast<long long>(row) * result.outputs + output;
  if (gridDim.y == 1) {
    if (mine) result.store(at, total);
    return;
  }
  const long long size = static_cast<long long>(result.rows) * result.outputs;
  if (mine) result.partials[blockIdx.y * size + at] = total;
  if (!last_to_arrive(result.arrivals) || !mine) return;
  float sum = 0.0f;
  for (int s = 0; s < gridDim.y; s++) sum += __ldcg(result.partials + s * size + at);
  result.store(at, sum);
}
