// From the parts of warps and blocks to the result. A part is, for each query, the largest exponent, the sum of
// exp2(exponent - largest), and the sum of those times v: parts of different tokens add up exactly once both are
// brought to the larger of their largest exponents (the log-sum-exp rule).
#pragma once

#include "attention_decode/slice.cuh"
#include "common/reduce.cuh"
#include "common/split_k.cuh"

constexpr int BLOCK_THREADS = WARPS * WARP;
constexpr int FAN = 16;  // parts that one block adds up; splits are at most FAN * FAN
constexpr int PIECES = QUERIES * HEAD_DIM / 4;              // of four floats
constexpr int RECORD = PIECES + (2 * QUERIES + 3) / 4;      // in pieces: the sums over v, then (largest, sum) of each

// In shared memory; room for more pieces than those of the totals may be used before these are there.
template <int ROOM>
struct TotalsWithRoom {
  float4 pieces[ROOM];
  float2 parts[WARPS > FAN ? WARPS : FAN][QUERIES];  // (largest, sum)
  float weights[FAN][QUERIES];
  float largest[QUERIES], sum[QUERIES];

  __device__ __forceinline__ float& at(int query, int column) {
    return reinterpret_cast<float*>(pieces)[query * HEAD_DIM + column];
  }

  __device__ __forceinline__ float largest_of(int query, int count) const {
    float most = parts[0][query].x;
    for (int i = 1; i < count; i++) most = fmaxf(most, parts[i][query].x);
    return most;
  }

  // By what part i of query counts among ``count`` of them.
  __device__ __forceinline__ float weight(int query, int i, int count) const {
    return exp2f(parts[i][query].x - largest_of(query, count));
  }

  // From the parts, in their order; for one thread of a query.
  __device__ __forceinline__ void add_sums(int query, int count) {
    const float most = largest_of(query, count);
    float total = 0.0f;
    for (int i = 0; i < count; i++) total = fmaf(parts[i][query].y, exp2f(parts[i][query].x - most), total);
    largest[query] = most;
    sum[query] = total;
  }
};

using Totals = TotalsWithRoom<PIECES>;

// Adds up the warps of the block, in their order. parts[warp] is filled; add(first) adds the calling warp's sums over
// v, weighted, to the totals, or sets them where it is the first.
template <int ROOM, typename Add>
__device__ __forceinline__ void merge_warps(TotalsWithRoom<ROOM>& totals, Add add) {
  const int warp = threadIdx.x / WARP;
  __syncthreads();
  if (threadIdx.x < QUERIES) totals.add_sums(threadIdx.x, WARPS);
  for (int w = 0; w < WARPS; w++) {
    if (warp == w) add(w == 0);
    __syncthreads();
  }
}

// The block's part as a record in memory.
template <int ROOM>
__device__ __forceinline__ void leave(const TotalsWithRoom<ROOM>& totals, float4* record) {
  for (int i = threadIdx.x; i < PIECES; i += BLOCK_THREADS) record[i] = totals.pieces[i];
  float2* ends = reinterpret_cast<float2*>(record + PIECES);
  if (threadIdx.x < QUERIES) ends[threadIdx.x] = make_float2(totals.largest[threadIdx.x], totals.sum[threadIdx.x]);
}

// Adds up ``count`` records, ``stride`` apart, in their order.
template <int ROOM>
__device__ __forceinline__ void gather(TotalsWithRoom<ROOM>& totals, const float4* records, int stride, int count) {
  const long long step = static_cast<long long>(stride) * RECORD;
  for (int i = threadIdx.x; i < count * QUERIES; i += BLOCK_THREADS) {
    const float2* ends = reinterpret_cast<const float2*>(records + i / QUERIES * step + PIECES);
    totals.parts[i / QUERIES][i % QUERIES] = __ldcg(ends + i % QUERIES);
  }
  __syncthreads();
  if (threadIdx.x < QUERIES) totals.add_sums(threadIdx.x, count);
  for (int i = threadIdx.x; i < count * QUERIES; i += BLOCK_THREADS) {
    totals.weights[i / QUERIES][i % QUERIES] = totals.weight(i % QUERIES, i / QUERIES, count);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < PIECES; i += BLOCK_THREADS) {
    const int query = i / (HEAD_DIM / 4);
    float4 parts[FAN], total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < FAN; s++) {  // all on their way at once: one wait for memory, not one for each
      if (s < count) parts[s] = __ldcg(records + s * step + i);
    }
#pragma unroll
    for (int s = 0; s < FAN; s++) {
      if (s >= count) break;
      const float weight = totals.weights[s][query];
      total.x = fmaf(parts[s].x, weight, total.x), total.y = fmaf(parts[s].y, weight, total.y);
      total.z = fmaf(parts[s].z, weight, total.z), total.w = fmaf(parts[s].w, weight, total.w);
    }
    totals.pieces[i] = total;
  }
  __syncthreads();
}

// Adds up the splits of a slice; true in the one block that then has the total. The last block of every FAN splits adds
// those up, and the last of these blocks what they have left: so no block reads more than FAN records.
// partials: [sequences, gridDim.x, gridDim.y] records; arrivals: 1 + gridDim.y / FAN counters, rounded up, for each
// slice.
template <int ROOM>
__device__ __forceinline__ bool merge_splits(TotalsWithRoom<ROOM>& totals, const Slice& slice, float* partials,
                                             int* arrivals) {
  if (slice.splits == 1) return true;
  const int split = blockIdx.y, family = split / FAN, families = (slice.splits + FAN - 1) / FAN;
  const long long place = static_cast<long long>(blockIdx.z) * gridDim.x + blockIdx.x;
  float4* records = reinterpret_cast<float4*>(partials) + place * gridDim.y * RECORD;
  int* counters = arrivals + place * (1 + (gridDim.y + FAN - 1) / FAN);
  leave(totals, records + split * RECORD);
  const int members = min(FAN, slice.splits - family * FAN);
  if (!last_to_arrive(counters + 1 + family, members)) return false;
  gather(totals, records + family * FAN * RECORD, 1, members);
  if (families == 1) return true;
  leave(totals, records + family * FAN * RECORD);  // all of the family have been read
  if (!last_to_arrive(counters, families)) return false;
  gather(totals, records, FAN, families);
  return true;
}

// What the result is multiplied by, and where it goes.
struct Result {
  const half* gate;  // or null
  long long gate_row, gate_head;  // elements from one row, and one head, to the next
  half* out;
  float* lse;  // or null

  __device__ __forceinline__ float gate_at(const Slice& slice, int j, int column) const {
    if (!gate) return 1.0f;
    const float x = __half2float(gate[slice.row(j) * gate_row + slice.head(j) * gate_head + column]);
    return 1.0f / (1.0f + __expf(-x));
  }

  template <int ROOM>
  __device__ __forceinline__ void store(TotalsWithRoom<ROOM>& totals, const Slice& slice) const {
    if (lse && threadIdx.x < slice.count) {
      lse[slice.place(threadIdx.x)] = (totals.largest[threadIdx.x] + log2f(totals.sum[threadIdx.x])) * LN_2;
    }
    for (int i = 2 * threadIdx.x; i < slice.count * HEAD_DIM; i += 2 * BLOCK_THREADS) {
      const int j = i / HEAD_DIM, column = i % HEAD_DIM;
      const float inverse = totals.sum[j] == 0.0f ? 0.0f : 1.0f / totals.sum[j];
      const float low = totals.at(j, column) * inverse * gate_at(slice, j, column);
      const float high = totals.at(j, column + 1) * inverse * gate_at(slice, j, column + 1);
      half2* to = reinterpret_cast<half2*>(out + slice.place(j) * HEAD_DIM + column);
      *to = __floats2half2_rn(low, high);
    }
  }
};
