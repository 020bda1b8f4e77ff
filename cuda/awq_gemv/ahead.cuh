// What a lane of the last rung reads, a batch ahead of what it multiplies.
// Compiled with the macros of 5_integer_dot.cu.
#pragma once

#include "awq_gemv/bytes_of_x.cuh"

// What a lane has under way: its weights and its share of x for the next batch.
struct Ahead {
  half2 pairs[PARTS][PAIRS];
  uint4 chunks[PARTS][DEPTH];
  half2 x[ROWS][2];                                 // inputs 0 1 and 4 5 of eight, or 2 3 and 6 7
};

// The first of a lane's output parts in a column, in parts of the whole matrix; PARTS that follow are beside it or, for
// [gate | up], every other one lies half the matrix further.
template <bool SILU_MUL>
__device__ __forceinline__ int part_of(int column, int p, int all_parts) {
  return SILU_MUL ? column * (PARTS / 2) + p / 2 + p % 2 * (all_parts / 2) : column * PARTS + p;
}

// Where a lane reads: the chunks of its parts, and from there back to the pairs; and its inputs of x.
struct Place {
  const char* chunks[PARTS];
  int to_pairs[PARTS];
  const half* x;
  int batch;
};

template <bool SILU_MUL>
__device__ __forceinline__ Place place(const char* weight, const half* x, int column, int batch, int all_parts,
                                       int groups) {
  const int lane = threadIdx.x % WARP, sharer = lane / LANES;
  Place at;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    const int part = min(part_of<SILU_MUL>(column, p, all_parts), all_parts - 1);
    const int in_tile = part % TILE_PARTS * LANES + lane % LANES;
    const int group = batch * (BATCH_K / GROUP) + sharer / GROUP_CHUNKS;
    const int chunk_offset = WARP * sizeof(half2) + sharer % GROUP_CHUNKS * CHUNK_BYTES + in_tile * sizeof(uint4);
    at.chunks[p] = weight + (static_cast<long long>(part / TILE_PARTS) * groups + group) * GROUP_BYTES + chunk_offset;
    at.to_pairs[p] = static_cast<int>(in_tile * sizeof(half2)) - chunk_offset;
  }
  at.x = x + batch * BATCH_K + lane / 2 * 8 + lane % 2 * 2;
  at.batch = batch;
  return at;
}

__device__ __forceinline__ void advance(Place& at) {
#pragma unroll
  for (int p = 0; p < PARTS; p++) at.chunks[p] += WARPS * BATCH_BYTES;
  at.x += WARPS * BATCH_K;
  at.batch += WARPS;
}

// Whether a lane's chunk i of a batch is inside K. Only a last batch can reach beyond, and only where groups are smaller
// than batches.
__device__ __forceinline__ bool inside(const Place& at, int i, int groups) {
  return GROUP == BATCH_K || at.batch * BATCH_CHUNKS + i * SHARERS + threadIdx.x % WARP / LANES < groups * GROUP_CHUNKS;
}

__device__ __forceinline__ void load_chunk(const Place& at, int i, bool there, Ahead& ahead) {
  const int first = i * SHARERS, offset = first / GROUP_CHUNKS * GROUP_BYTES + first % GROUP_CHUNKS * CHUNK_BYTES;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    if (there) ahead.chunks[p][i] = __ldcs(reinterpret_cast<const uint4*>(at.chunks[p] + offset));
  }
}

__device__ __forceinline__ void load_pair(const Place& at, int run, bool there, Ahead& ahead) {
  const int offset = run * RUN * SHARERS / GROUP_CHUNKS * GROUP_BYTES;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    const half2* from = reinterpret_cast<const half2*>(at.chunks[p] + at.to_pairs[p] + offset);
    if (there) ahead.pairs[p][run] = __ldcs(from);
  }
}

// The lane's share of x; nothing at or beyond batch ``end``.
__device__ __forceinline__ void load_x(const Place& at, int end, int rows, int groups, Ahead& ahead) {
  const int inputs = groups * GROUP;
  const bool there = at.batch < end && (GROUP == BATCH_K || at.batch * BATCH_K + threadIdx.x % WARP * 4 < inputs);
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const half2* from = reinterpret_cast<const half2*>(at.x + m * inputs) + 2 * i;
      ahead.x[m][i] = there && m < rows ? __ldg(from) : half2{};
    }
  }
}

// Everything that a lane needs of a batch.
__device__ __forceinline__ void load(const Place& at, int end, int rows, int groups, Ahead& ahead) {
  load_x(at, end, rows, groups, ahead);
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    const bool there = at.batch < end && inside(at, i, groups);
    load_chunk(at, i, there, ahead);
    if (i % RUN == 0) load_pair(at, i / RUN, there, ahead);
  }
}
