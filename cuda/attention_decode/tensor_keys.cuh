// The first half of the tensor-core rung: products of 8 queries and a tile of 32 keys, exact but for fp32 sums. The
// quad-pairs lie side by side along the keys, so that a lane loads its own key, 16 bytes at a time.
//
// Quantized keys are multiplied as whole numbers, which halves hold exactly, and get their scales afterwards, in fp32:
// rounding a key to halves costs 2^-11 of a channel that is large in all keys, more than what tells one key from
// another. INT8: the scale of the token. INT4: x = q s + b = (q - 8) s + (b + 8 s), so that the product with 64
// elements that share (s, b) is s times that with q - 8, plus (b + 8 s) times the sum of the query. (q - 8 rather than
// q: numbers around 0 stay small, and so does what cancels in the end.)
#pragma once

#include "attention_decode/slice.cuh"
#include "common/mma.cuh"
#include "common/paged.cuh"

using Keys = PagedStore<K_BITS, HEAD_DIM>;

constexpr int TILE = WARP;                          // tokens
constexpr int K_ELEMENTS = 128 / K_BITS;            // of a key, in 16 bytes
constexpr int K_LOADS = HEAD_DIM / K_ELEMENTS;      // of a key
constexpr int K_AHEAD = K_LOADS < 8 ? K_LOADS : 8;
constexpr int Q_ROW = HEAD_DIM + 8;                 // halves: rows lie 16 bytes further apart than they are long
constexpr int PAIRS = HEAD_DIM / PAIR_SPAN;
constexpr int PAIR_LOADS = PAIR_SPAN / K_ELEMENTS;  // of the elements that share a pair
constexpr float MIDDLE = 8.0f;                      // of the codes 0 to 15
static_assert(K_BITS != 4 || K_AHEAD % PAIR_LOADS == 0, "a pass has whole stretches of 64 elements");

// N words with as few loads as can be.
template <int N>
__device__ __forceinline__ void load_words(const void* from, unsigned (&to)[N]) {
  static_assert(N == 1 || N == 2 || N % 4 == 0, "4, 8 or some times 16 bytes");
  if constexpr (N == 1) to[0] = __ldg(static_cast<const unsigned*>(from));
  if constexpr (N == 2) *reinterpret_cast<uint2*>(to) = __ldg(static_cast<const uint2*>(from));
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) reinterpret_cast<uint4*>(to)[i] = __ldg(static_cast<const uint4*>(from) + i);
  }
}

// Eight elements, number i of those that were loaded together, as exact halves: as they are, or whole numbers without
// their scale, those of 4 bits less MIDDLE.
template <int BITS, int WORDS>
__device__ __forceinline__ void exact_halves(const unsigned (&words)[WORDS], int i, half2 (&out)[4]) {
  if constexpr (BITS == 16) {
#pragma unroll
    for (int c = 0; c < 4; c++) out[c] = *reinterpret_cast<const half2*>(&words[4 * i + c]);
  } else if constexpr (BITS == 8) {
    bytes_to_halves(make_uint2(words[2 * i], words[2 * i + 1]), out);
  } else {
    unpack_word(words[i], Offsets(__float2half(MIDDLE)), out);
  }
}

// The block's queries in shared memory; rows past the last one are zero.
struct Queries {
  half elements[MMA_M * Q_ROW];
  float sums[MMA_M * PAIRS];  // over the elements that share a pair; of 4 bits

  __device__ __forceinline__ void load(const half* q, const Slice& slice) {
    for (int i = threadIdx.x; i < MMA_M * HEAD_DIM / 8; i += WARPS * WARP) {
      const int row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
      const uint4 none = make_uint4(0, 0, 0, 0);
      const uint4 eight =
          row < slice.count ? *reinterpret_cast<const uint4*>(q + slice.place(row) * HEAD_DIM + column) : none;
      *reinterpret_cast<uint4*>(elements + row * Q_ROW + column) = eight;
      if constexpr (K_BITS == 4) sums[i / 8] = sum_of_64(eight);  // eight lanes store the same
    }
    __syncthreads();
  }

  // Over eight neighbouring lanes, of eight halves each.
  __device__ __forceinline__ static float sum_of_64(const uint4& eight) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned word = word_of(eight, i);
      const float2 two = __half22float2(*reinterpret_cast<const half2*>(&word));
      sum += two.x + two.y;
    }
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    return sum;
  }
};

// The scales of the four tokens that a lane has of a product's columns: two neighbours, and two four further on.
template <int BITS>
struct TileScales {
  static constexpr int PARAMS = BITS == 4 ? 2 * PAIRS : 1;  // halves of a token
  unsigned words[2][PARAMS];                                // of two neighbours

  // place: of the tile's first token. Behind the last one there may be anything: what comes of it is masked.
  __device__ __forceinline__ void load(const PagedStore<BITS, HEAD_DIM>& store, long long place) {
    if constexpr (BITS == 16) return;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      load_words(store.params + (place + accumulator_column(threadIdx.x % WARP, 4 * n)) * PARAMS, words[n]);
    }
  }

  __device__ __forceinline__ float2 floats(int n, int word) const {
    return __half22float2(*reinterpret_cast<const half2*>(&words[n][word]));
  }

  // INT8: of the token of accumulator i.
  __device__ __forceinline__ float scale(int i) const { return i % 2 ? floats(i / 4, 0).y : floats(i / 4, 0).x; }

  // INT4: (s, b + MIDDLE s) of the token of accumulator i.
  __device__ __forceinline__ float2 pair(int i, int part) const {
    const float2 sb = floats(i / 4, i % 2 * PAIRS + part);
    return make_float2(sb.x, fmaf(sb.x, MIDDLE, sb.y));
  }
};

// 16 bytes of the lane's key.
struct Key {
  unsigned words[4];

  __device__ __forceinline__ void load(const uint4* key, int i) { load_words(key + i, words); }
};

// What is on its way from memory, or was loaded for the tile that is next.
struct KeysAhead {
  Key keys[K_AHEAD];
  TileScales<K_BITS> scales;

  __device__ __forceinline__ KeysAhead(const Keys& all, long long place, const uint4* key) {
#pragma unroll
    for (int i = 0; i < K_AHEAD; i++) keys[i].load(key, i);
    scales.load(all, place);
  }
};

// products += the pairs' part of 64 elements, of which ``whole`` has the products with q - MIDDLE.
__device__ __forceinline__ void add_scaled(const Queries& queries, const TileScales<K_BITS>& scales, int part,
                                           const float (&whole)[8], float (&products)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float2 pair = scales.pair(i, part);
    const float sum = queries.sums[accumulator_row(threadIdx.x % WARP, i) * PAIRS + part];
    products[i] = fmaf(whole[i], pair.x, fmaf(sum, pair.y, products[i]));
  }
}

// products: of the 8 queries with the tile's 32 keys, as the tensor cores leave them. key: the lane's. What is used
// makes room for the same part of the next tile's key.
__device__ __forceinline__ void multiply_keys(const Queries& queries, const Keys& keys, const uint4* key,
                                              const uint4* next, long long next_place, KeysAhead& ahead,
                                              float (&products)[8]) {
  const half* row = queries.elements + fragment_row(threadIdx.x % WARP) * Q_ROW;
#pragma unroll 1
  for (int begin = 0; begin < K_LOADS; begin += K_AHEAD) {
    const uint4* from = begin + K_AHEAD < K_LOADS ? key + begin + K_AHEAD : next;
    float whole[8];
#pragma unroll
    for (int a = 0; a < K_AHEAD; a++) {
      const int load = begin + a;
      if (K_BITS == 4 && a % PAIR_LOADS == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) whole[i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < K_ELEMENTS / 8; i++) {
        half2 k[4];
        exact_halves<K_BITS>(ahead.keys[a].words, i, k);
        const uint4& q = *reinterpret_cast<const uint4*>(row + load * K_ELEMENTS + 8 * i);
        multiply(K_BITS == 4 ? whole : products, q, k);
      }
      ahead.keys[a].load(from, a);
      if (K_BITS == 4 && a % PAIR_LOADS == PAIR_LOADS - 1) {
        add_scaled(queries, ahead.scales, load / PAIR_LOADS, whole, products);
      }
    }
  }
  if constexpr (K_BITS == 8) {
#pragma unroll
    for (int i = 0; i < 8; i++) products[i] *= ahead.scales.scale(i);
  }
  ahead.scales.load(keys, next_place);
}
