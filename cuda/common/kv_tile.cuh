// Keys or values of one page on their way to shared memory, for the tensor cores: 64 elements of each of its 64 tokens
// at a time. A thread fetches its part 16 bytes at a time, as stored, turns it into halves and stores those. Values are
// rounded to halves; of keys in 8 or 4 bits the halves are the codes, exactly, and their scales are left to the scores.
#pragma once

#include "common/dequant.cuh"
#include "common/paged.cuh"

constexpr int TILE_PIECES = PAIR_SPAN / 8;             // of 16 bytes: eight halves of one row
constexpr int TILE_SIZE = PAGE_TOKENS * TILE_PIECES;   // 8 KB

// Where a piece of a token's 64 halves lies in a tile. In plain order, piece p of all tokens would meet the same four
// banks. Exchanged like this, no eight lanes that move 16 bytes together meet any bank twice. As keys the tensor cores
// want one piece of the tokens {0, 1, 4, 5, 16, 17, 20, 21}, or of those 2, 8 or 10 further on; as values, pieces p and
// p ^ 4 of four neighbouring tokens. Stores come with eight pieces of a token, every second one of two tokens, or p and
// p ^ 4 of four tokens.
__device__ __forceinline__ int key_place(int token, int piece) {
  const int order = (token & 1) | ((token ^ token >> 1) & 2) | (token >> 2 & 4);
  return token * TILE_PIECES + (piece ^ order);
}
__device__ __forceinline__ int value_place(int token, int piece) { return token * TILE_PIECES + (piece ^ (token & 3)); }

// One thread's part of a tile that a block of THREAD_COUNT threads moves.
template <bool KEYS, int BITS, int DIM, int THREAD_COUNT>
struct KVTile {
  static constexpr int UNITS = PAIR_SPAN * BITS / 128;  // pieces of 16 bytes of a token, as stored
  static constexpr int LOADS = PAGE_TOKENS * UNITS / THREAD_COUNT;
  static constexpr int STEP = THREAD_COUNT / UNITS;  // tokens from one of a thread's loads to the next
  static_assert(LOADS * STEP == PAGE_TOKENS && STEP * UNITS == THREAD_COUNT, "The threads share a tile evenly");

  uint4 data[LOADS];
  half2 params[LOADS];  // of values: (s, s) in 8 bits, (s, b) in 4

  static __device__ __forceinline__ int token() { return threadIdx.x / UNITS; }
  static __device__ __forceinline__ int unit() { return threadIdx.x % UNITS; }

  // Where the parts of a page begin for this thread.
  struct Source {
    const uint4* values;
    const half* params;
    // place: of the page's first token
    __device__ __forceinline__ Source(const PagedStore<BITS, DIM>& store, long long place)
        : values(store.template at<uint4>(place + token(), 0) + unit()),
          params(store.params + (place + token()) * (BITS == 4 ? 2 * (DIM / PAIR_SPAN) : 1)) {}
  };

  // Elements 64 part .. 64 part + 63.
  __device__ __forceinline__ void load(const Source& from, int part) {
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
      data[l] = __ldg(from.values + l * STEP * (DIM * BITS / 128) + part * UNITS);
      if constexpr (!KEYS && BITS == 8) params[l] = __half2half2(__ldg(from.params + l * STEP));
      if constexpr (!KEYS && BITS == 4) {
        params[l] = __ldg(reinterpret_cast<const half2*>(from.params) + l * STEP * (DIM / PAIR_SPAN) + part);
      }
    }
  }

  __device__ __forceinline__ void store(uint4* tile) const {
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
      const unsigned* words = reinterpret_cast<const unsigned*>(&data[l]);
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        half2 halves[4];
        if constexpr (BITS == 16) *reinterpret_cast<uint4*>(halves) = data[l];
        if constexpr (BITS == 8) {
          bytes_to_halves(make_uint2(words[2 * i], words[2 * i + 1]), halves);
#pragma unroll
          for (int j = 0; j < 4; j++) halves[j] = KEYS ? halves[j] : __hmul2(halves[j], params[l]);
        }
        if constexpr (KEYS && BITS == 4) unpack_word(words[i], Offsets(__float2half(0.0f)), halves);
        if constexpr (!KEYS && BITS == 4) dequantize_word<true>(words[i], params[l], halves);
        tile[place_in_tile(l, i)] = *reinterpret_cast<const uint4*>(halves);
      }
    }
  }

  // The same with zeros for tokens from ``held`` on: nobody wrote them, and 0 times what lies there may be NaN.
  __device__ __forceinline__ void store(uint4* tile, int held) const {
    store(tile);
    if (held >= PAGE_TOKENS) return;
#pragma unroll
    for (int l = 0; l < LOADS; l++) {
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        if (l * STEP + token() >= held) tile[place_in_tile(l, i)] = uint4{};
      }
    }
  }

 private:
  static constexpr int PIECES = 16 / BITS;  // of halves in 16 bytes

  static __device__ __forceinline__ int place_in_tile(int l, int i) {
    const int piece = unit() * PIECES + i;
    return KEYS ? key_place(token() + l * STEP, piece) : value_place(token(), piece) + l * STEP * TILE_PIECES;
  }
};
