// What both rungs share: where a block's keys lie, and what they are as halves.
#pragma once

#include "common/dequant.cuh"
#include "common/paged.cuh"
#include "common/reduce.cuh"

constexpr int SEGMENTS = PAGE_TOKENS / SEGMENT;  // results of a page, for each row
constexpr float LEAST = -1e30f;                  // a maximum of nothing but -inf: differences from it are no NaN

using Keys = PagedStore<K_BITS, HEAD_DIM>;

// Elements 8 piece .. 8 piece + 7 of a key as halves, 16 bytes.
__device__ __forceinline__ uint4 key_piece(const Keys& keys, long long place, int piece) {
  uint4 out;
  half2(&halves)[4] = *reinterpret_cast<half2(*)[4]>(&out);
  if constexpr (K_BITS == 16) out = __ldg(keys.at<uint4>(place, 8 * piece));
  if constexpr (K_BITS == 8) {
    bytes_to_halves(__ldg(keys.at<uint2>(place, 8 * piece)), halves);
    const half2 scale = __half2half2(keys.scale(place));
#pragma unroll
    for (int i = 0; i < 4; i++) halves[i] = __hmul2(halves[i], scale);
  }
  if constexpr (K_BITS == 4) {
    dequantize_word<true>(__ldg(keys.at<unsigned>(place, 8 * piece)), keys.pair(place, 8 * piece), halves);
  }
  return out;
}

// What a block computes: one page of one KV head, for the rows of one tile.
struct Work {
  bool scored;       // false behind the pages that the tile asks about: the results are -inf
  long long place;   // of the page's first key, among all places of the store
  long long result;  // of row 0's first segment; the next row's is ``pitch`` further
  int pitch;

  __device__ __forceinline__ Work(const int* table, const int* sequences, const int* visible, int kv_heads, int rows,
                                  int width) {
    const int page = blockIdx.x, kv_head = blockIdx.y, tile = blockIdx.z;
    scored = page < visible[tile];
    const int held = scored ? table[static_cast<long long>(sequences[tile]) * width + page] : 0;
    place = place_of(held, kv_heads, kv_head, 0);
    pitch = width * SEGMENTS;
    result = (static_cast<long long>(tile) * kv_heads + kv_head) * rows * pitch + page * SEGMENTS;
  }

  // -inf for every row and segment.
  __device__ __forceinline__ void leave_out(float* out, int rows) const {
    for (int i = threadIdx.x; i < rows * SEGMENTS; i += blockDim.x) {
      out[result + static_cast<long long>(i / SEGMENTS) * pitch + i % SEGMENTS] = __int_as_float(0xff800000);
    }
  }
};

// The rows of the block's tile and KV head.
__device__ __forceinline__ const half* rows_of_block(const half* x, int kv_heads, int rows) {
  return x + (static_cast<long long>(blockIdx.z) * kv_heads + blockIdx.y) * rows * HEAD_DIM;
}
