// Idea: four neighbouring lanes take the four words of one output, so that their 16-byte stores fill 64 bytes of a row.
// Removes the half-filled sectors: what a warp stores, and what it loads, are whole sectors.
//
// w[n][k] = (q - z) s, or q s + b, rounded to half once. packed: tiles of 32 outputs as labkit/quant/pack.py lays them
// out; w: [rows, inputs], row-major. A warp computes one group of one tile, eight outputs at a time.
// The words of eight outputs lie side by side: 4 bytes a lane are one load of 128 bytes, and no lane has to hand its
// words to another. All words of the group are loaded before the first is used.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   THREADS     of a block, a multiple of 32
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(THREADS)
#error "dequant_int4 is compiled with -D GROUP, SCALE_BIAS and THREADS"
#endif

#include "common/dequant.cuh"
#include "common/reduce.cuh"

constexpr int CHUNKS = GROUP / CHUNK_K;
constexpr int WORDS = CHUNK_K / 8;         // of a chunk of an output, one a lane
constexpr int PASSES = TILE_N * WORDS / WARP;  // of eight outputs
constexpr int OUTPUTS = WARP / WORDS;      // of a pass

extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_int4(const int* __restrict__ packed, half* __restrict__ w, int rows, int inputs) {
  const int groups = inputs / GROUP;
  const int item = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;  // a group of a tile
  const int lane = threadIdx.x % WARP;
  const int tile_row = item / groups * TILE_N;
  if (tile_row >= rows) return;  // no tile at all
  const PackedGroup<GROUP>& group = reinterpret_cast<const PackedGroup<GROUP>*>(packed)[item];
  half2 pairs[PASSES];
  unsigned words[PASSES][CHUNKS];
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    pairs[p] = group.pairs[p * OUTPUTS + lane / WORDS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      words[p][c] = __ldcs(reinterpret_cast<const unsigned*>(group.chunks[c]) + p * WARP + lane);  // read only once
    }
  }
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    const int row = tile_row + lane_column(p * OUTPUTS + lane / WORDS);
    if (row >= rows) continue;  // padding
    half* to = w + static_cast<long long>(row) * inputs + item % groups * GROUP + lane % WORDS * 8;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      __align__(16) half2 out[4];
      dequantize_word<SCALE_BIAS>(words[p][c], pairs[p], out);
      __stcg(reinterpret_cast<uint4*>(to + c * CHUNK_K), *reinterpret_cast<const uint4*>(out));
    }
  }
}
