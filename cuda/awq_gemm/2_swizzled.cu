// Idea: four warps share 32 rows of x through shared memory, whose 16-byte pieces are swizzled among the banks.
// Removes three of four readings of x, and three of four dequantizations: a weight now serves 32 rows.
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

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemm(const half* __restrict__ x, const Group* __restrict__ weight, half* __restrict__ y, int rows, int outputs,
             int groups) {
  __shared__ uint4 shared[BM * ROW_PIECES];
  const int lane = threadIdx.x % WARP, first_row = blockIdx.x * BM;
  const int tile = blockIdx.y * WARPS + threadIdx.x / WARP, tiles = (outputs + TILE_N - 1) / TILE_N;
  // A warp beyond the last tile multiplies it too, and stores nothing: it is needed at the barriers.
  const Group* column = weight + static_cast<long long>(min(tile, tiles - 1)) * groups;
  const int row = threadIdx.x / ROW_PIECES, piece = threadIdx.x % ROW_PIECES;  // of x: what this thread fetches
  const uint4* from = row_of_x(x, first_row + row, rows, groups * GROUP) + piece;
  uint4* const to = shared + swizzled(row, piece);

  float acc[M_TILES][8] = {};
  for (int step = 0; step < groups * GROUP_CHUNKS; step++) {
    *to = from[step * ROW_PIECES];
    __syncthreads();
    const Group& group = column[step / GROUP_CHUNKS];
    const half2 pair = group.pairs[lane];
    const uint4 chunk = group.chunks[step % GROUP_CHUNKS][lane];
#pragma unroll
    for (int j = 0; j < ROW_PIECES; j++) {
      half2 w[4];
      dequantize_word<SCALE_BIAS>(word_of(chunk, j), pair, w);
      const uint4* pieces = shared + swizzled(fragment_row(lane), j);
#pragma unroll
      for (int m = 0; m < M_TILES; m++) multiply(acc[m], pieces[m * SWIZZLE_PERIOD], w);
    }
    __syncthreads();  // before the next pieces of x replace these
  }
#pragma unroll
  for (int m = 0; m < M_TILES; m++) store_product(acc[m], y, first_row + m * MMA_M, tile * TILE_N, rows, outputs);
}
