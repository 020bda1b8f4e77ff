// Idea: a warp multiplies 8 rows by 32 outputs on the tensor cores, weights dequantized straight into its registers.
// Removes the fp16 copy of the weights, which would be written and read again at four times their size.
//
// y[m][n] = sum_k x[m][k] w[n][k], w = (q - z) s or q s + b, rounded to half; products and sums are fp32.
// x [rows, K], y [rows, outputs]; weight [ceil(outputs / 32)][K / GROUP] as labkit/quant/pack.py lays it out.
// A lane's 16 bytes are 32 inputs of its own column of B, so B needs no shared memory; it loads its row of x itself.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
#if !defined(GROUP) || !defined(SCALE_BIAS)
#error "awq_gemm is compiled with -D GROUP and SCALE_BIAS"
#endif

#include "common/dequant.cuh"
#include "common/mma.cuh"
#include "common/quant.cuh"

using Group = PackedGroup<GROUP>;

extern "C" __global__ void __launch_bounds__(WARP)
    awq_gemm(const half* __restrict__ x, const Group* __restrict__ weight, half* __restrict__ y, int rows, int outputs,
             int groups) {
  const int lane = threadIdx.x, first_row = blockIdx.x * MMA_M;
  const Group* column = weight + static_cast<long long>(blockIdx.y) * groups;
  const uint4* pieces = row_of_x(x, first_row + fragment_row(lane), rows, groups * GROUP);
  float acc[8] = {};
  for (int g = 0; g < groups; g++) {
    const half2 pair = column[g].pairs[lane];
#pragma unroll
    for (int c = 0; c < GROUP / CHUNK_K; c++) {
      const uint4 chunk = column[g].chunks[c][lane];
#pragma unroll
      for (int j = 0; j < CHUNK_K / FRAGMENT_K; j++, pieces++) {
        half2 w[4];
        dequantize_word<SCALE_BIAS>(word_of(chunk, j), pair, w);
        multiply(acc, *pieces, w);
      }
    }
  }
  store_product(acc, y, first_row, blockIdx.y * TILE_N, rows, outputs);
}
