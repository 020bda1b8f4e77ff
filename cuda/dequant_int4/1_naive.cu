// Idea: a thread computes one weight: it finds the word and the nibble, and stores one half.
// Removes nothing yet: eight threads load the same word, and each of them moves 2 bytes.
//
// w[n][k] = (q - z) s, or q s + b, rounded to half once. packed: tiles of 32 outputs as labkit/quant/pack.py lays them
// out; w: [rows, inputs], row-major. BLOCKS_PER_ROW consecutive blocks compute one row.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   THREADS     of a block
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(THREADS)
#error "dequant_int4 is compiled with -D GROUP, SCALE_BIAS and THREADS"
#endif

#include "common/quant.cuh"

// The lane that holds a column: the inverse of lane_column.
__device__ __forceinline__ int column_lane(int column) {
  return 4 * ((column >> 3) & 3) + (column & 3) + 16 * ((column >> 2) & 1);
}

// Where input i of a word's eight begins: the even ones first, see NIBBLE_INPUT in labkit/quant/pack.py.
__device__ __forceinline__ int first_bit(int i) { return 4 * (i % 2 * 4 + i / 2); }

extern "C" __global__ void __launch_bounds__(THREADS)
    dequant_int4(const int* __restrict__ packed, half* __restrict__ w, int rows, int inputs) {
  const int blocks_per_row = (inputs + THREADS - 1) / THREADS;
  const int row = blockIdx.x / blocks_per_row;
  const int k = blockIdx.x % blocks_per_row * THREADS + threadIdx.x;
  if (k >= inputs) return;
  const int lane = column_lane(row % TILE_N);
  const PackedGroup<GROUP>* groups = reinterpret_cast<const PackedGroup<GROUP>*>(packed);
  const PackedGroup<GROUP>& group = groups[static_cast<long long>(row / TILE_N) * (inputs / GROUP) + k / GROUP];
  const unsigned* words = reinterpret_cast<const unsigned*>(&group.chunks[k % GROUP / CHUNK_K][lane]);
  const half q = __int2half_rn((words[k % CHUNK_K / 8] >> first_bit(k % 8)) & 15);
  const half scale = __low2half(group.pairs[lane]), other = __high2half(group.pairs[lane]);
  w[static_cast<long long>(row) * inputs + k] = SCALE_BIAS ? __hfma(q, scale, other) : __hmul(__hsub(q, other), scale);
}
