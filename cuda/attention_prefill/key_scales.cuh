// What the codes of keys are worth. Halves hold codes of 8 or 4 bits exactly, so those are multiplied, and scores take
// the rest, in fp32: scale(token) (q . codes), in 4 bits + bias(token) (sum of q), of each part of 64 elements. (A key
// rounded to halves is off by up to 2^-11 of each element: too much for a score in which large products cancel.)
//
// In 4 bits each part has scales of its own. Scores are kept as multiples of the scale of the part at hand, and become
// those of the next by the ratio of the two: sums of one part alone would need as many registers again as all scores.
//
// A warp keeps its notes of this where its weights will be: that part of shared memory is free until the scores are.
#pragma once

#include "attention_prefill/work.cuh"

constexpr int WARP_ROWS = BM / WARPS;         // of queries and weights
constexpr int BIASES_AT = PAGE_TOKENS;        // in floats, after the scales: each over the scale of its part
constexpr int RATIOS_AT = 2 * PAGE_TOKENS;    // the scale of the part before over that of this one
constexpr int ROW_SUMS_AT = 3 * PAGE_TOKENS;  // of the queries
constexpr float SMALLEST_HALF = 0x1p-24f;
static_assert((ROW_SUMS_AT + WARP_ROWS * PARTS) * sizeof(float) <= WARP_ROWS * PAGE_TOKENS * sizeof(half), "Notes fit");

__device__ __forceinline__ float* warp_notes(uint4* weights) {
  return reinterpret_cast<float*>(weights + threadIdx.x / WARP * WARP_ROWS * TILE_PIECES);
}

__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A lane's share on the way from a page to the notes: what tokens lane and lane + 32 have.
struct KeyScales {
  static constexpr int COUNT = PAGE_TOKENS / WARP;
  half2 params[COUNT];  // 8 bits: (s, s); 4 bits: (s, b)

  // place: of the page's first token. In 8 bits a token has one scale, which comes with its first part.
  __device__ __forceinline__ void load(const PagedStore<K_BITS, HEAD_DIM>& keys, long long place, int part) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const long long token = place + threadIdx.x % WARP + i * WARP;
      if (K_BITS == 8 && part == 0) params[i] = __half2half2(keys.scale(token));
      if constexpr (K_BITS == 4) params[i] = keys.pair(token, part * PAIR_SPAN);
    }
  }

  // The last scale goes in times factor: scores become exponents of two.
  __device__ __forceinline__ void store(float* notes, int part, float factor) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      float* to = notes + threadIdx.x % WARP + i * WARP;
      if (K_BITS == 8 && part == 0) to[0] = __low2float(params[i]) * factor;
      if constexpr (K_BITS == 4) {
        const float scale = fmaxf(__low2float(params[i]), SMALLEST_HALF);  // pages that nobody wrote may hold zeros
        const float inverse = inverse_fast(scale);
        if (part > 0) to[RATIOS_AT] = to[0] * inverse;
        to[BIASES_AT] = __high2float(params[i]) * inverse;
        to[0] = part + 1 < PARTS ? scale : scale * factor;
      }
    }
  }
};
