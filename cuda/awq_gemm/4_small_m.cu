// Idea: the warps of a block, and several blocks, share K; each brings x and weights straight to its registers.
// Removes the barriers and shared memory from the main loop, and the idle multiprocessors where there are few rows.
//
// y[m][n] = sum_k x[m][k] w[n][k], w = (q - z) s or q s + b, rounded to half; products and sums are fp32.
// x [rows, K], y [rows, outputs]; weight [ceil(outputs / 32)][K / GROUP] as labkit/quant/pack.py lays it out.
// A block computes 16 rows by 64 outputs (8 rows where there are no more), its part of K. A warp has both tiles of
// outputs, so that a piece of x serves two. The weights of one or two steps are on their way to each, which is 16 to 32
// KiB for the 16 warps that a V100's multiprocessor holds; its bandwidth needs 5 to 8 (Little's law, 0.5 to 0.7 us).
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
// partials: fp32 [gridDim.z, gridDim.x, gridDim.y, 16 * 64], used where gridDim.y > 1; arrivals: a
// counter (split_k.cuh) for each [gridDim.z, gridDim.x].
#if !defined(GROUP) || !defined(SCALE_BIAS)
#error "awq_gemm is compiled with -D GROUP and SCALE_BIAS"
#endif

#include "common/dequant.cuh"
#include "common/mma.cuh"
#include "common/quant.cuh"
#include "common/split_k.cuh"

using Group = PackedGroup<GROUP>;

constexpr int WARPS = 4;
constexpr int BLOCKS = 4;                     // on a V100's multiprocessor: at most 128 registers a thread
constexpr int AHEAD = 2;                      // steps of 32 inputs; even, as inputs alternate
constexpr int N_TILES = 2;                    // of 32 outputs, in a warp
constexpr int BM = 2 * MMA_M;
constexpr int MOST_PRODUCTS = BM / MMA_M * N_TILES;  // of 8 rows by 32 outputs: one a warp, when they are added up
constexpr int GROUP_CHUNKS = GROUP / CHUNK_K;
constexpr int PIECES = CHUNK_K / FRAGMENT_K;  // of 16 bytes, in a row's inputs of a step
static_assert(MOST_PRODUCTS == WARPS, "each warp adds up one product");

// A product's accumulators as they lie in memory: each lane's first four, then each lane's last four.
using Sums = float4[2][WARP];

// A lane's nibbles and scales of one step.
struct Weights {
  uint4 chunks[N_TILES];
  half2 pairs[N_TILES];

  __device__ __forceinline__ void load(const Group* const (&columns)[N_TILES], int step) {
#pragma unroll
    for (int t = 0; t < N_TILES; t++) {
      const Group& group = columns[t][step / GROUP_CHUNKS];
      chunks[t] = __ldcs(&group.chunks[step % GROUP_CHUNKS][threadIdx.x % WARP]);
      pairs[t] = __ldg(&group.pairs[threadIdx.x % WARP]);  // again for every step of the group, then from L1
    }
  }
};

// The inputs of one step, of the lane's row in each m-tile.
template <int M_TILES>
struct Inputs {
  uint4 pieces[M_TILES][PIECES];

  __device__ __forceinline__ void load(const uint4* const (&from)[M_TILES], int step) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int j = 0; j < PIECES; j++) pieces[m][j] = __ldg(from[m] + step * PIECES + j);
    }
  }
};

template <int M_TILES>
__device__ __forceinline__ void multiply_step(float (&acc)[M_TILES * N_TILES][8], const Inputs<M_TILES>& inputs,
                                              const Weights& weights) {
#pragma unroll
  for (int j = 0; j < PIECES; j++) {
#pragma unroll
    for (int t = 0; t < N_TILES; t++) {
      half2 w[4];
      dequantize_word<SCALE_BIAS>(word_of(weights.chunks[t], j), weights.pairs[t], w);
#pragma unroll
      for (int m = 0; m < M_TILES; m++) multiply(acc[m * N_TILES + t], inputs.pieces[m][j], w);
    }
  }
}

// acc: the warp's sums over its steps, from begin + warp on every WARPS-th one below end. Past the end the last step is
// loaded once more: cheaper than to ask, and never multiplied.
template <int M_TILES>
__device__ __forceinline__ void main_loop(float (&acc)[M_TILES * N_TILES][8], const uint4* const (&from)[M_TILES],
                                          const Group* const (&columns)[N_TILES], int begin, int end) {
  const int first = begin + threadIdx.x / WARP;
  Weights weights[AHEAD];
  Inputs<M_TILES> inputs[2];
#pragma unroll
  for (int a = 0; a < AHEAD; a++) weights[a].load(columns, min(first + a * WARPS, end - 1));
  inputs[0].load(from, min(first, end - 1));
  for (int step = first; step < end; step += AHEAD * WARPS) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const int at = step + a * WARPS;
      if (at >= end) break;
      inputs[(a + 1) % 2].load(from, min(at + WARPS, end - 1));
      multiply_step<M_TILES>(acc, inputs[a % 2], weights[a]);
      weights[a].load(columns, min(at + AHEAD * WARPS, end - 1));
    }
  }
}

__device__ __forceinline__ void add(float (&acc)[8], const float4& low, const float4& high) {
  acc[0] += low.x, acc[1] += low.y, acc[2] += low.z, acc[3] += low.w;
  acc[4] += high.x, acc[5] += high.y, acc[6] += high.z, acc[7] += high.w;
}

__device__ __forceinline__ void leave(const float (&acc)[8], Sums& sums) {
  sums[0][threadIdx.x % WARP] = make_float4(acc[0], acc[1], acc[2], acc[3]);
  sums[1][threadIdx.x % WARP] = make_float4(acc[4], acc[5], acc[6], acc[7]);
}

// total: the block's product warp, as the sum over its warps; zeros in a warp for which there is none.
template <int PRODUCTS>
__device__ __forceinline__ void sum_warps(const float (&acc)[PRODUCTS][8], Sums (&sums)[WARPS][MOST_PRODUCTS],
                                          float (&total)[8]) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
  for (int p = 0; p < PRODUCTS; p++) leave(acc[p], sums[warp][p]);
  __syncthreads();
  if (warp >= PRODUCTS) return;
#pragma unroll
  for (int w = 0; w < WARPS; w++) add(total, sums[w][warp][0][lane], sums[w][warp][1][lane]);
}

// total: the sum over the blocks that share K, in the last of them; false in the others. parts: theirs, in order.
__device__ __forceinline__ bool sum_blocks(Sums* parts, int* arrived, float (&total)[8]) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  leave(total, parts[blockIdx.y * MOST_PRODUCTS + warp]);
  if (!last_to_arrive(arrived, gridDim.y)) return false;
#pragma unroll
  for (int i = 0; i < 8; i++) total[i] = 0.0f;
  for (int b = 0; b < gridDim.y; b++) {
    const Sums& part = parts[b * MOST_PRODUCTS + warp];
    add(total, __ldcg(&part[0][lane]), __ldcg(&part[1][lane]));
  }
  return true;
}

// total: the block's product warp over its part of K.
template <int M_TILES>
__device__ __forceinline__ void block_sums(const half* x, const Group* weight, int rows, int outputs, int groups,
                                           Sums (&sums)[WARPS][MOST_PRODUCTS], float (&total)[8]) {
  const int last_tile = (outputs + TILE_N - 1) / TILE_N - 1;
  const Group* columns[N_TILES];
  const uint4* from[M_TILES];
#pragma unroll
  for (int t = 0; t < N_TILES; t++) {  // past the last tile it is multiplied again, and not stored
    const int tile = blockIdx.x * N_TILES + t;
    columns[t] = weight + static_cast<long long>(min(tile, last_tile)) * groups;
  }
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
    from[m] = row_of_x(x, blockIdx.z * BM + m * MMA_M + fragment_row(threadIdx.x % WARP), rows, groups * GROUP);
  }
  const long long steps = groups * GROUP_CHUNKS;
  float acc[M_TILES * N_TILES][8] = {};
  main_loop<M_TILES>(acc, from, columns, steps * blockIdx.y / gridDim.y, steps * (blockIdx.y + 1) / gridDim.y);
  sum_warps<M_TILES * N_TILES>(acc, sums, total);
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP, BLOCKS)
    awq_gemm(const half* __restrict__ x, const Group* __restrict__ weight, half* __restrict__ y, int rows, int outputs,
             int groups, float* partials, int* arrivals) {
  __shared__ Sums sums[WARPS][MOST_PRODUCTS];
  const int warp = threadIdx.x / WARP, first_row = blockIdx.z * BM;
  float total[8] = {};
  if (rows - first_row <= MMA_M) {
    block_sums<1>(x, weight, rows, outputs, groups, sums, total);
  } else {
    block_sums<2>(x, weight, rows, outputs, groups, sums, total);
  }
  if (gridDim.y > 1) {
    const long long place = static_cast<long long>(blockIdx.z) * gridDim.x + blockIdx.x;
    Sums* parts = reinterpret_cast<Sums*>(partials) + place * gridDim.y * MOST_PRODUCTS;
    if (!sum_blocks(parts, arrivals + place, total)) return;
  }
  const int row = first_row + warp / N_TILES * MMA_M, column = (blockIdx.x * N_TILES + warp % N_TILES) * TILE_N;
  store_product(total, y, row, column, rows, outputs);
}
