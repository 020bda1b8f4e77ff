// Idea: a block computes 128 rows by 256 outputs, each of its eight warps 64 by 64: 128 sums in a thread's registers.
// Removes most dequantizations and readings of x for each multiplication: the tensor cores set the pace.
//
// y[m][n] = sum_k x[m][k] w[n][k], w = (q - z) s or q s + b, rounded to half; products and sums are fp32.
// x [rows, K], y [rows, outputs]; weight [ceil(outputs / 32)][K / GROUP] as labkit/quant/pack.py lays it out.
// 32 inputs a step: x through two buffers in shared memory, the weights straight into registers, one step ahead.
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

constexpr int BM = 128, BN = 256, WM = 64, WN = 64;
constexpr int THREADS = BM / WM * (BN / WN) * WARP;
constexpr int M_TILES = WM / MMA_M, N_TILES = WN / TILE_N;
constexpr int PIECES = BM * ROW_PIECES / THREADS;       // of x, that a thread brings to shared memory in a step
constexpr int PIECE_ROWS = THREADS / ROW_PIECES;        // from one of them to the next
constexpr int GROUP_CHUNKS = GROUP / CHUNK_K;

// What a thread has on its way for the next step: its pieces of x, its columns' nibbles, with a new group their scales.
struct Step {
  uint4 x[PIECES], chunks[N_TILES];
  half2 pairs[N_TILES];

  __device__ __forceinline__ void load(const uint4* const (&from)[PIECES], const Group* const (&columns)[N_TILES],
                                       int step) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int p = 0; p < PIECES; p++) x[p] = __ldg(from[p] + step * ROW_PIECES);
#pragma unroll
    for (int t = 0; t < N_TILES; t++) {
      const Group& group = columns[t][step / GROUP_CHUNKS];
      chunks[t] = __ldg(&group.chunks[step % GROUP_CHUNKS][lane]);
      if (step % GROUP_CHUNKS == 0) pairs[t] = __ldg(&group.pairs[lane]);
    }
  }

  // A thread's pieces lie whole periods of the swizzle apart.
  __device__ __forceinline__ void share(uint4* to) const {
#pragma unroll
    for (int p = 0; p < PIECES; p++) to[p * PIECE_ROWS * ROW_PIECES] = x[p];
  }
};

// x: the warp's rows in shared memory.
__device__ __forceinline__ void multiply_step(float (&acc)[M_TILES][N_TILES][8], const uint4* x,
                                              const uint4 (&chunks)[N_TILES], const half2 (&pairs)[N_TILES]) {
  const int row = fragment_row(threadIdx.x % WARP);
#pragma unroll
  for (int j = 0; j < ROW_PIECES; j++) {
    const uint4* pieces = x + swizzled(row, j);
    half2 w[N_TILES][4];
#pragma unroll
    for (int t = 0; t < N_TILES; t++) dequantize_word<SCALE_BIAS>(word_of(chunks[t], j), pairs[t], w[t]);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int t = 0; t < N_TILES; t++) multiply(acc[m][t], pieces[m * SWIZZLE_PERIOD], w[t]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    awq_gemm(const half* __restrict__ x, const Group* __restrict__ weight, half* __restrict__ y, int rows, int outputs,
             int groups) {
  __shared__ uint4 shared[2][BM * ROW_PIECES];
  const int warp = threadIdx.x / WARP, steps = groups * GROUP_CHUNKS;
  const int warp_row = warp % (BM / WM) * WM, first_row = blockIdx.x * BM;
  const int first_tile = (blockIdx.y * (BN / WN) + warp / (BM / WM)) * N_TILES;
  const int last_tile = (outputs + TILE_N - 1) / TILE_N - 1;
  const int row = threadIdx.x / ROW_PIECES, piece = threadIdx.x % ROW_PIECES;  // of x: what this thread fetches first
  const uint4* from[PIECES];
  const Group* columns[N_TILES];
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    from[p] = row_of_x(x, first_row + p * PIECE_ROWS + row, rows, groups * GROUP) + piece;
  }
#pragma unroll
  for (int t = 0; t < N_TILES; t++) {  // past the last tile it is multiplied again, and not stored
    columns[t] = weight + static_cast<long long>(min(first_tile + t, last_tile)) * groups;
  }
  const int to = swizzled(row, piece);

  float acc[M_TILES][N_TILES][8] = {};
  Step next;
  next.load(from, columns, 0);
  next.share(shared[0] + to);
  half2 pairs[N_TILES] = {next.pairs[0], next.pairs[1]};
  for (int step = 0; step < steps; step++) {
    __syncthreads();  // this step's x is there, and nobody reads the other buffer any more
    const uint4 chunks[N_TILES] = {next.chunks[0], next.chunks[1]};
    const int following = min(step + 1, steps - 1);  // at the end the last step once more: cheaper than to ask
    next.load(from, columns, following);
    multiply_step(acc, shared[step % 2] + warp_row * ROW_PIECES, chunks, pairs);
    next.share(shared[1 - step % 2] + to);
#pragma unroll
    for (int t = 0; t < N_TILES; t++) pairs[t] = next.pairs[t];
  }
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
#pragma unroll
    for (int t = 0; t < N_TILES; t++) {
      store_product(acc[m][t], y, first_row + warp_row + m * MMA_M, (first_tile + t) * TILE_N, rows, outputs);
    }
  }
}
