// What happens to a head of queries or keys on its way to attention: norm and RoPE, by a warp that holds it, lane l
// elements PER_LANE l .. PER_LANE l + PER_LANE - 1.
#pragma once

#include "common/hadamard.cuh"
#include "common/kv_quant.cuh"

constexpr int PER_LANE = HEAD_DIM / WARP;
constexpr int WARPS = THREADS / WARP;  // of a block, each with a head of its own
constexpr int HALF_ROTARY = ROTARY_DIM / 2;

// The head of this warp: of q, then of k, then of v. Blocks lie side by side in y.
__device__ __forceinline__ int head_of_warp() { return blockIdx.y * WARPS + threadIdx.x / WARP; }

// x / sqrt(mean(x^2) + eps) * weight, or x as it is without a weight.
__device__ __forceinline__ void normalise(float (&x)[PER_LANE], const float* weight, float eps) {
  float squares = 0.0f, gains[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) squares += x[i] * x[i];
  const float scale = rsqrtf(warp_sum(squares) / HEAD_DIM + eps);
  load(weight + lane_index() * PER_LANE, gains);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) x[i] = x[i] * scale * gains[i];
}

// The element of the head that lies ``distance`` behind (or, if negative, before) x[i] of this lane; another one where
// the head has none there. i and distance are known when the kernel is compiled, so x stays in registers.
__device__ __forceinline__ float neighbour(const float (&x)[PER_LANE], int i, int distance) {
  const int from = i + distance + HEAD_DIM;  // not negative
  return __shfl_sync(ALL_LANES, x[from % PER_LANE], lane_index() + from / PER_LANE - WARP);
}

// RoPE: the pairs (j, j + HALF_ROTARY) turn by the angle of their token, whose factors are cos and sin [ROTARY_DIM];
// the first half of sin has its sign. Dimensions from ROTARY_DIM on pass through.
__device__ __forceinline__ void turn(float (&x)[PER_LANE], const float* cos, const float* sin) {
  const int lane = lane_index(), first = lane * PER_LANE;
  float partner[PER_LANE], c[PER_LANE], s[PER_LANE];
  if constexpr (HALF_ROTARY % PER_LANE == 0) {
    // Both halves are whole lanes: one shuffle an element brings its partner, and the factors come with wide loads.
    constexpr int LANES = HALF_ROTARY / PER_LANE;
    const int other = lane < LANES ? lane + LANES : lane - LANES;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) partner[i] = __shfl_sync(ALL_LANES, x[i], other);
    if (first >= ROTARY_DIM) return;
    load(cos + first, c);
    load(sin + first, s);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) x[i] = x[i] * c[i] + partner[i] * s[i];
  } else {
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      const float behind = neighbour(x, i, HALF_ROTARY), before = neighbour(x, i, -HALF_ROTARY);
      partner[i] = first + i < HALF_ROTARY ? behind : before;
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      if (first + i < ROTARY_DIM) x[i] = x[i] * cos[first + i] + partner[i] * sin[first + i];
    }
  }
}

// Keys or values of one head of one token on their way into the pages; what stands in them is rounded as BITS ask.
template <int BITS>
__device__ __forceinline__ void store_row(const PageRow<BITS, HEAD_DIM>& row, const float (&x)[PER_LANE]) {
  if constexpr (BITS == 16) {
    store_head(row.halves(), x);
  } else {
    quantize(x, row);
  }
}

// The same for values, which nothing has changed: where they stay halves they are moved as they are.
template <int BITS>
__device__ __forceinline__ void store_unchanged(const PageRow<BITS, HEAD_DIM>& row, const half* from) {
  if constexpr (BITS == 16) {
    copy_row<HEAD_DIM, VEC>(row.halves(), from);
  } else {
    float x[PER_LANE];
    load_head<PER_LANE, VEC>(from, x);
    quantize(x, row);
  }
}

// Who writes the first slot of a page clears the slots behind those that this step writes.
template <int BITS>
__device__ __forceinline__ void clear_if_fresh(const PageRow<BITS, HEAD_DIM>& row, const long long* page,
                                               const long long* offset, int token, int tokens) {
  if (offset[token] == 0) clear_behind<8>(row, tokens_in_page(page, token, tokens));
}
