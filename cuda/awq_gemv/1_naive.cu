// Idea: a thread computes one output, and takes the weights from memory word by word.
// Removes nothing: it is the definition, and what the other rungs are compared with.
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

constexpr int GROUP_WORDS = sizeof(PackedGroup<GROUP>) / 4;

// The inputs of a word of weights, by the nibble that holds each: NIBBLE_INPUT in labkit/quant/pack.py.
__device__ __forceinline__ int input_of(int nibble) { return nibble < 4 ? 2 * nibble : 2 * nibble - 7; }

__device__ float dot(const half* x, const int* tile, int lane, int groups) {
  float sum = 0.0f;
  for (int g = 0; g < groups; g++) {
    const int* group = tile + g * GROUP_WORDS;
    const float2 pair = __half22float2(*reinterpret_cast<const half2*>(group + lane));
    for (int word = 0; word < GROUP / 8; word++) {
      const unsigned nibbles = group[WARP + word / 4 * 4 * WARP + 4 * lane + word % 4];
      for (int i = 0; i < 8; i++) {
        const float q = nibbles >> 4 * i & 15;
        const float w = SCALE_BIAS ? q * pair.x + pair.y : (q - pair.y) * pair.x;
        sum += w * __half2float(x[g * GROUP + word * 8 + input_of(i)]);
      }
    }
  }
  return sum;
}

// blockIdx.y: the row of x.
template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, const int* weight, const Result& result, int rows, int outputs,
                                     int groups) {
  const int tile = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP, m = blockIdx.y;
  const int tiles = (result.width + TILE_N - 1) / TILE_N;
  if (tile >= tiles) return;
  const half* row = x + m * groups * GROUP;
  const int* first = weight + static_cast<long long>(tile) * groups * GROUP_WORDS;
  float total = dot(row, first, lane, groups);
  if (SILU_MUL) {
    total = silu_times(total, dot(row, first + static_cast<long long>(tiles) * groups * GROUP_WORDS, lane, groups));
  }
  result.store(m, tile * TILE_N + lane_column(lane), total);
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
             half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows, int outputs,
             int groups) {
  gemv<false>(x, (weight), {residual, y, rows, outputs}, rows, outputs, groups);
}

// outputs: rows of the weight, twice the width of y.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv_silu_mul(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
                      half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows,
                      int outputs, int groups) {
  gemv<true>(x, (weight), {residual, y, rows, outputs / 2}, rows, outputs, groups);
}
