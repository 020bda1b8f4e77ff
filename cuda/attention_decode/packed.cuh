// The loop of the second and third rung: a warp takes one token at a time, for all queries of its slice.
#pragma once

#include "attention_decode/merge.cuh"

constexpr int COLUMNS = HEAD_DIM / WARP;  // of a lane: lane, lane + 32, ...

// The warps of the block take turns along the split's tokens; totals is what all of them found.
__device__ __forceinline__ void attend(const half* q, const PagedStore<K_BITS, HEAD_DIM>& keys,
                                       const PagedStore<V_BITS, HEAD_DIM>& values, const Slice& slice, float scale,
                                       Totals& totals) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  float query[QUERIES][COLUMNS], acc[QUERIES][COLUMNS] = {}, largest[QUERIES], sum[QUERIES];
  int seen[QUERIES];
#pragma unroll
  for (int j = 0; j < QUERIES; j++) {
    largest[j] = LOWEST, sum[j] = 0.0f, seen[j] = slice.seen(j);
    const half* from = q + slice.place(min(j, slice.count - 1)) * HEAD_DIM;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) query[j][c] = __half2float(from[lane + WARP * c]) * scale * LOG2_E;
  }
  for (int t = slice.begin + warp; t < slice.end; t += WARPS) {
    const long long place = slice.token(t);
    float k[COLUMNS], v[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) k[c] = keys.element(place, lane + WARP * c);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) v[c] = values.element(place, lane + WARP * c);
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      float product = 0.0f;
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) product = fmaf(query[j][c], k[c], product);
      const float exponent = warp_sum(product);
      if (t >= seen[j]) continue;
      const float most = fmaxf(largest[j], exponent);
      const float before = exp2f(largest[j] - most), p = exp2f(exponent - most);
      largest[j] = most, sum[j] = fmaf(sum[j], before, p);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) acc[j][c] = fmaf(p, v[c], acc[j][c] * before);
    }
  }
#pragma unroll
  for (int j = 0; j < QUERIES; j++) {
    if (lane == j) totals.parts[warp][j] = make_float2(largest[j], sum[j]);
  }
  merge_warps(totals, [&](bool first) {
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      const float weight = totals.weight(j, warp, WARPS);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        float& total = totals.at(j, lane + WARP * c);
        total = fmaf(acc[j][c], weight, first ? 0.0f : total);
      }
    }
  });
}
