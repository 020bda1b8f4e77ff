// Idea: a thread takes 16 bytes of weights with one load, and uses them for all rows of x.
// Removes three of four loads of weights, as many of their sectors, and their reading again for every row.
// At four rows it is slower than the first, whose rows have threads of their own; kept as the step to the third.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), w = (q - z) s or q s + b, for up to ROWS rows of x.
// awq_gemv_silu_mul: the weight is [gate | up], and y = silu(gate x) (up x).
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   ROWS        rows of x at most: 1, 2, 4 or 8
//   WARPS       of a block
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(ROWS) || !defined(WARPS)
#error "awq_gemv is compiled with -D GROUP, SCALE_BIAS, ROWS and WARPS"
#endif

#include "awq_gemv/result.cuh"

using Tile = const PackedGroup<GROUP>*;

__device__ __forceinline__ int input_of(int nibble) { return nibble < 4 ? 2 * nibble : 2 * nibble - 7; }

__device__ void dot(const half* x, Tile tile, int rows, int groups, float (&sums)[ROWS]) {
  const int lane = threadIdx.x % WARP, inputs = groups * GROUP;
#pragma unroll 1
  for (int g = 0; g < groups; g++) {
    const float2 pair = __half22float2(tile[g].pairs[lane]);
#pragma unroll
    for (int c = 0; c < GROUP / CHUNK_K; c++) {
      const uint4 chunk = tile[g].chunks[c][lane];
      const unsigned* words = reinterpret_cast<const unsigned*>(&chunk);
#pragma unroll
      for (int i = 0; i < CHUNK_K; i++) {
        const float q = words[i / 8] >> 4 * (i % 8) & 15;
        const float w = SCALE_BIAS ? q * pair.x + pair.y : (q - pair.y) * pair.x;
        const half* at = x + g * GROUP + c * CHUNK_K + i / 8 * 8 + input_of(i % 8);  // the same for all lanes
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
          if (m < rows) sums[m] += w * __half2float(at[m * inputs]);
        }
      }
    }
  }
}

template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, Tile weight, const Result& result, int rows, int outputs,
                                     int groups) {
  const int tile = blockIdx.x * WARPS + threadIdx.x / WARP;
  const int tiles = (result.width + TILE_N - 1) / TILE_N;
  if (tile >= tiles) return;
  float sums[1 + SILU_MUL][ROWS] = {};
#pragma unroll 1  // unrolled, it would spill
  for (int part = 0; part <= SILU_MUL; part++) {
    dot(x, weight + static_cast<long long>(tile + part * tiles) * groups, rows, groups, sums[part]);
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    const float total = SILU_MUL ? silu_times(sums[0][m], sums[SILU_MUL][m]) : sums[0][m];
    result.store(m, tile * TILE_N + lane_column(threadIdx.x % WARP), total);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
             half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows, int outputs,
             int groups) {
  gemv<false>(x, reinterpret_cast<Tile>(weight), {residual, y, rows, outputs}, rows, outputs, groups);
}

// outputs: rows of the weight, twice the width of y.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv_silu_mul(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
                      half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows,
                      int outputs, int groups) {
  gemv<true>(x, reinterpret_cast<Tile>(weight), {residual, y, rows, outputs / 2}, rows, outputs, groups);
}
