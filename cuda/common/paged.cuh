// Keys or values of one attention layer in pages of 64 tokens, as labkit/ops/paged_kv.py stores them: where they lie,
// and what they are as numbers.
//   16 bits  halves [pages, kv_heads, 64, D]
//    8 bits  bytes of that shape, x = q s; params: s of every token and head
//    4 bits  words of eight nibbles [pages, kv_heads, 64, D / 8], x = q s + b; params: pairs (s, b) [..., D / 64]
#pragma once

#include <cuda_fp16.h>

#include "common/quant.cuh"

constexpr int PAGE_TOKENS = 64;
constexpr int PAIR_SPAN = 64;  // neighbouring elements of a head that share a pair

// Token ``offset`` of a page, for one KV head, counted among all places that a store has.
__device__ __forceinline__ long long place_of(int page, int kv_heads, int kv_head, int offset) {
  return (static_cast<long long>(page) * kv_heads + kv_head) * PAGE_TOKENS + offset;
}

// Eight signed bytes as halves. With its sign bit flipped a byte is q + 128; 0x64 before it makes 1024 + 128 + q.
__device__ __forceinline__ void bytes_to_halves(uint2 bytes, half2 (&out)[4]) {
  const unsigned words[2] = {bytes.x ^ 0x80808080u, bytes.y ^ 0x80808080u};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned bits = __byte_perm(words[i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140);
    out[i] = __hsub2(*reinterpret_cast<const half2*>(&bits), __float2half2_rn(1152.0f));  // exact
  }
}

template <int BITS, int DIM>
struct PagedStore {
  static_assert(BITS == 16 || BITS == 8 || BITS == 4, "16, 8 or 4 bits an element");
  static_assert(DIM % PAIR_SPAN == 0, "heads are a multiple of 64");

  const void* values;
  const half* params;

  // What begins at an element of the token at ``place``, as a T.
  template <typename T>
  __device__ __forceinline__ const T* at(long long place, int element) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(values) + (place * DIM + element) * BITS / 8);
  }

  // Of 8 bits.
  __device__ __forceinline__ half scale(long long place) const { return __ldg(params + place); }

  // Of 4 bits: that of an element's stretch of 64.
  __device__ __forceinline__ half2 pair(long long place, int element) const {
    return __ldg(reinterpret_cast<const half2*>(params) + place * (DIM / PAIR_SPAN) + element / PAIR_SPAN);
  }

  // One element as it was stored.
  __device__ __forceinline__ float element(long long place, int i) const {
    if constexpr (BITS == 16) return __half2float(__ldg(at<half>(place, i)));
    if constexpr (BITS == 8) return static_cast<float>(__ldg(at<signed char>(place, i))) * __half2float(scale(place));
    if constexpr (BITS == 4) {
      const int nibble = i % 2 * 4 + i % 8 / 2;  // those of even elements come first
      const float q = static_cast<float>(__ldg(at<unsigned>(place, i / 8 * 8)) >> 4 * nibble & 15u);
      const half2 sb = pair(place, i);
      return fmaf(q, __low2float(sb), __high2float(sb));
    }
  }
};
