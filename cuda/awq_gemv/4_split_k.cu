// Idea: the warps of a block and the blocks of a grid column share K, and the next group's weights are under way.
// Removes the wait for memory: enough bytes are on their way for the bandwidth, however few outputs there are.
// With very many outputs and four rows it gains nothing; kept as the step to the fifth.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), w = (q - z) s or q s + b, for up to ROWS rows of x.
// awq_gemv_silu_mul: the weight is [gate | up], and y = silu(gate x) (up x).
// Little's law: a V100's 900 GB/s times 0.7 us until an answer are 630 KB under way, 8 KB for each multiprocessor. A
// warp has 2 KB (a group of 128), so a handful of warps is enough if none of them waits for its own last load.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   ROWS        rows of x at most: 1, 2, 4 or 8
//   WARPS       of a block; they take turns along K
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(ROWS) || !defined(WARPS)
#error "awq_gemv is compiled with -D GROUP, SCALE_BIAS, ROWS and WARPS"
#endif

#include "awq_gemv/result.cuh"

using Tile = const PackedGroup<GROUP>*;

constexpr int CHUNKS = GROUP / CHUNK_K;
constexpr int LANE_K = GROUP / WARP;  // neighbouring inputs of x that a lane brings to shared memory

struct SharedX {
  float x[GROUP][ROWS];
};

// What a lane has under way: the next group of each of its tiles, and its part of that group's x.
template <int TILES>
struct Ahead {
  half2 pairs[TILES];
  uint4 chunks[TILES][CHUNKS];
  half x[ROWS][LANE_K];
};

template <int TILES>
__device__ __forceinline__ void load(const Tile (&tiles)[TILES], const half* x, int group, int rows, int inputs,
                                     Ahead<TILES>& ahead) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    ahead.pairs[t] = __ldcs(&tiles[t][group].pairs[lane]);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) ahead.chunks[t][c] = __ldcs(&tiles[t][group].chunks[c][lane]);
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
#pragma unroll
    for (int i = 0; i < LANE_K; i++) {
      ahead.x[m][i] = m < rows ? x[m * inputs + group * GROUP + lane * LANE_K + i] : __float2half(0.0f);
    }
  }
}

__device__ __forceinline__ void share_x(const half (&x)[ROWS][LANE_K], SharedX& shared) {
  __syncwarp();  // all lanes are done with the group before
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
#pragma unroll
    for (int i = 0; i < LANE_K; i++) shared.x[threadIdx.x % WARP * LANE_K + i][m] = __half2float(x[m][i]);
  }
  __syncwarp();
}

template <int TILES>
__device__ __forceinline__ void multiply_group(const Ahead<TILES>& now, const SharedX& shared,
                                               float (&sums)[TILES][ROWS]) {
  float acc[TILES][ROWS] = {}, sum_x[ROWS] = {};
#pragma unroll
  for (int word = 0; word < GROUP / 8; word++) {
    float x[8][ROWS];
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        x[i][m] = shared.x[8 * word + i][m];
        if (SCALE_BIAS) sum_x[m] += x[i][m];
      }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      half2 pairs[4];
      const unsigned nibbles = reinterpret_cast<const unsigned*>(&now.chunks[t][word / 4])[word % 4];
      unpack_word(nibbles, Offsets(SCALE_BIAS ? __float2half(0.0f) : __high2half(now.pairs[t])), pairs);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float w = i % 2 ? __high2float(pairs[i / 2]) : __low2float(pairs[i / 2]);
#pragma unroll
        for (int m = 0; m < ROWS; m++) acc[t][m] = fmaf(w, x[i][m], acc[t][m]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TILES; t++) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      sums[t][m] = fmaf(__low2float(now.pairs[t]), acc[t][m], sums[t][m]);
      if (SCALE_BIAS) sums[t][m] = fmaf(__high2float(now.pairs[t]), sum_x[m], sums[t][m]);
    }
  }
}

// A block has one tile of outputs, or for [gate | up] the two that belong together.
template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, Tile weight, const Result& result, float* partials, int* arrivals,
                                     int rows, int outputs, int groups) {
  constexpr int TILES = SILU_MUL ? 2 : 1;
  __shared__ SharedX shared[WARPS];
  __shared__ float left[WARPS][TILES * ROWS * WARP];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, inputs = groups * GROUP;
  const int begin = groups * blockIdx.y / gridDim.y, end = groups * (blockIdx.y + 1) / gridDim.y;
  Tile tiles[TILES];
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    tiles[t] = weight + static_cast<long long>(blockIdx.x + t * gridDim.x) * groups;
  }

  float sums[TILES][ROWS] = {};
  Ahead<TILES> ahead;
  if (begin + warp < end) load(tiles, x, begin + warp, rows, inputs, ahead);
  for (int group = begin + warp; group < end; group += WARPS) {
    const Ahead<TILES> now = ahead;
    share_x(now.x, shared[warp]);
    if (group + WARPS < end) load(tiles, x, group + WARPS, rows, inputs, ahead);
    multiply_group(now, shared[warp], sums);
  }

#pragma unroll
  for (int t = 0; t < TILES; t++) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) left[warp][(t * ROWS + m) * WARP + lane] = sums[t][m];
  }
  if (!add_up(left, partials, arrivals)) return;
  for (int i = threadIdx.x; i < ROWS * WARP; i += WARPS * WARP) {
    const float total = SILU_MUL ? silu_times(left[0][i], left[0][i + ROWS * WARP]) : left[0][i];
    result.store(i / WARP, blockIdx.x * TILE_N + lane_column(i % WARP), total);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
             half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows, int outputs,
             int groups) {
  gemv<false>(x, reinterpret_cast<Tile>(weight), {residual, y, rows, outputs}, partials, arrivals, rows, outputs,
              groups);
}

// outputs: rows of the weight, twice the width of y.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv_silu_mul(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
                      half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows,
                      int outputs, int groups) {
  gemv<true>(x, reinterpret_cast<Tile>(weight), {residual, y, rows, outputs / 2}, partials, arrivals, rows, outputs,
              groups);
}
