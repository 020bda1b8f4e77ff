// Idea: while a step is multiplied, the next one's x and weights are on their way, x to a second buffer.
// Removes the wait for memory from every step, and one of its two barriers.
//
// y[m][n] = sum_k x[m][k] w[n][k], w = (q - z) s or q s + b, rounded to half; products and sums are fp32.
// x [rows, K], y [rows, outputs]; weight [ceil(outputs / 32)][K / GROUP] as labkit/quant/pack.py lays it out.
// A block computes 32 rows by 128 outputs, 32 inputs at a time; each of its warps has a tile of 32 outputs.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
#if !defined(GROUP) || !defined(SCALE_BIAS)
#error "awq_gemm is compiled with -D GROUP and SCALE_BIAS"
#endif

#include "common/dequant.cuh"
#include "common/mma.cuh"
#include "common/quant.cuh"
#include "common/swizzle.cuh"

using Group = PackedGroup<GROUP>;

constexpr int WARPS = 4, BM = 32;
constexpr int M_TILES = BM / MMA_M;
constexpr int GROUP_CHUNKS = GROUP / CHUNK_K;

// A thread's part of one step: a piece of x for the block, and its own column's nibbles and scale.
struct Step {
  uint4 x, chunk;
  half2 pair;
  __device__ __forceinline__ Step(const uint4* from, const Group* column, int step)
      : x(from[step * ROW_PIECES]),
        chunk(column[step / GROUP_CHUNKS].chunks[step % GROUP_CHUNKS][threadIdx.x % WARP]),
        pair(column[step / GROUP_CHUNKS].pairs[threadIdx.x % WARP]) {}
};

__device__ __forceinline__ void multiply_step(float (&acc)[M_TILES][8], const uint4* x, const Step& step) {
  const int row = fragment_row(threadIdx.x % WARP);
#pragma unroll
  for (int j = 0; j < ROW_PIECES; j++) {
    half2 w[4];
    dequantize_word<SCALE_BIAS>(word_of(step.chunk, j), step.pair, w);
    const uint4* pieces = x + swizzled(row, j);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) multiply(acc[m], pieces[m * SWIZZLE_PERIOD], w);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemm(const half* __restrict__ x, const Group* __restrict__ weight, half* __restrict__ y, int rows, int outputs,
             int groups) {
  __shared__ uint4 shared[2][BM * ROW_PIECES];
  const int first_row = blockIdx.x * BM, steps = groups * GROUP_CHUNKS;
  const int tile = blockIdx.y * WARPS + threadIdx.x / WARP, tiles = (outputs + TILE_N - 1) / TILE_N;
  // A warp beyond the last tile multiplies it too, and stores nothing: it is needed at the barriers.
  const Group* column = weight + static_cast<long long>(min(tile, tiles - 1)) * groups;
  const int row = threadIdx.x / ROW_PIECES, piece = threadIdx.x % ROW_PIECES;  // of x: what this thread fetches
  const uint4* from = row_of_x(x, first_row + row, rows, groups * GROUP) + piece;
  const int to = swizzled(row, piece);

  float acc[M_TILES][8] = {};
  Step next(from, column, 0);
  for (int step = 0; step < steps; step++) {
    const Step now = next;
    shared[step % 2][to] = now.x;
    // One barrier will do: it also tells that all have read what the next step overwrites, the other buffer.
    __syncthreads();
    if (step + 1 < steps) next = Step(from, column, step + 1);
    multiply_step(acc, shared[step % 2], now);
  }
#pragma unroll
  for (int m = 0; m < M_TILES; m++) store_product(acc[m], y, first_row + m * MMA_M, tile * TILE_N, rows, outputs);
}
