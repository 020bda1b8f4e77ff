// Idea: a lane takes the 32 inputs of its own output with one 16-byte load, and makes halves of them two at a time.
// Removes the repeated loads, and most instructions: a magic number turns two nibbles into two halves.
//
// w[n][k] = (q - z) s, or q s + b, rounded to half once. packed: tiles of 32 outputs as labkit/quant/pack.py lays them
// out; w: [rows, inputs], row-major. A warp computes one group of one tile.
// What is left to remove: the lanes of a store lie in 32 different rows, and each fills half a sector.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   THREADS     of a block, a multiple of 32
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(THREADS)
#error "dequant_int4 is compiled with -D GROUP, SCALE_BIAS and THREADS"
#endif

#include "common/dequant.cuh"
#include "common/reduce.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_int4(const int* __restrict__ packed, half* __restrict__ w, int rows, int inputs) {
  const int groups = inputs / GROUP;
  const int item = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;  // a group of a tile
  const int lane = threadIdx.x % WARP;
  const int row = item / groups * TILE_N + lane_column(lane);
  if (row >= rows) return;  // a row of padding, or no tile at all
  const PackedGroup<GROUP>& group = reinterpret_cast<const PackedGroup<GROUP>*>(packed)[item];
  const half2 pair = group.pairs[lane];
  half* to = w + static_cast<long long>(row) * inputs + item % groups * GROUP;
#pragma unroll
  for (int c = 0; c < GROUP / CHUNK_K; c++) {
    const uint4 chunk = group.chunks[c][lane];
    const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      __align__(16) half2 out[4];
      dequantize_word<SCALE_BIAS>(words[j], pair, out);
      *reinterpret_cast<uint4*>(to + c * CHUNK_K + 8 * j) = *reinterpret_cast<const uint4*>(out);
    }
  }
}
