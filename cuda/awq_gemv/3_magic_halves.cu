// Idea: magic numbers make halves of two nibbles at a time, x waits in shared memory, a scale multiplies a group's sum.
// Removes the shift, the mask, the conversion and the scaling of each weight, and the conversion of x by every lane.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), w = (q - z) s or q s + b, for up to ROWS rows of x.
// awq_gemv_silu_mul: the weight is [gate | up], and y = silu(gate x) (up x).
// q - z is exact in half, products and sums are fp32.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   ROWS        rows of x at most: 1, 2, 4 or 8
//   WARPS       of a block
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(ROWS) || !defined(WARPS)
#error "awq_gemv is compiled with -D GROUP, SCALE_BIAS, ROWS and WARPS"
#endif

#include "awq_gemv/result.cuh"

using Tile = const PackedGroup<GROUP>*;

// Each warp has its own x: the group at hand, input by input, the rows side by side.
struct SharedX {
  float x[GROUP][ROWS];
};

__device__ __forceinline__ void share_x(const half* x, int rows, int inputs, SharedX& shared) {
  __syncwarp();  // all lanes are done with the group before
  for (int k = threadIdx.x % WARP; k < GROUP; k += WARP) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) shared.x[k][m] = m < rows ? __half2float(x[m * inputs + k]) : 0.0f;
  }
  __syncwarp();
}

__device__ void dot(const half* x, Tile tile, int rows, int groups, SharedX& shared, float (&sums)[ROWS]) {
  const int lane = threadIdx.x % WARP;
  for (int g = 0; g < groups; g++) {
    share_x(x + g * GROUP, rows, groups * GROUP, shared);
    const half2 pair = tile[g].pairs[lane];
    const Offsets offsets(SCALE_BIAS ? __float2half(0.0f) : __high2half(pair));
    float acc[ROWS] = {}, sum_x[ROWS] = {};
#pragma unroll
    for (int c = 0; c < GROUP / CHUNK_K; c++) {
      const uint4 chunk = tile[g].chunks[c][lane];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        half2 pairs[4];
        unpack_word(reinterpret_cast<const unsigned*>(&chunk)[j], offsets, pairs);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const float w = i % 2 ? __high2float(pairs[i / 2]) : __low2float(pairs[i / 2]);
#pragma unroll
          for (int m = 0; m < ROWS; m++) {
            const float value = shared.x[c * CHUNK_K + 8 * j + i][m];
            acc[m] = fmaf(w, value, acc[m]);
            if (SCALE_BIAS) sum_x[m] += value;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      sums[m] = fmaf(__low2float(pair), acc[m], sums[m]);
      if (SCALE_BIAS) sums[m] = fmaf(__high2float(pair), sum_x[m], sums[m]);
    }
  }
}

template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, Tile weight, const Result& result, int rows, int outputs,
                                     int groups) {
  __shared__ SharedX shared[WARPS];
  const int warp = threadIdx.x / WARP, tile = blockIdx.x * WARPS + warp;
  const int tiles = (result.width + TILE_N - 1) / TILE_N;
  if (tile >= tiles) return;
  float sums[ROWS] = {}, up[ROWS] = {};
  dot(x, weight + static_cast<long long>(tile) * groups, rows, groups, shared[warp], sums);
  if (SILU_MUL) dot(x, weight + static_cast<long long>(tile + tiles) * groups, rows, groups, shared[warp], up);
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    const float total = SILU_MUL ? silu_times(sums[m], up[m]) : sums[m];
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
