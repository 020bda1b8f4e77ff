// Who attends in a block of attention_decode: a few queries of one sequence that share a KV head, with part of it.
#pragma once

#include "common/paged.cuh"

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
constexpr float LOWEST = -3.402823466e38f;  // not -inf: no difference of two infinities arises

// Query j is query head kv_head * group + j % group of row j / group, counted from the sequence's first row. The grid
// is (kv_heads * slices, splits, sequences); a slice is QUERIES queries. A split is as many pages in all sequences, so
// many that a sequence of table_width pages has no more splits than the grid: short sequences have few.
struct Slice {
  int length;             // tokens of the sequence
  int begin, end;         // those of this split
  int splits;             // of this sequence that have tokens: the first ones of the grid's
  int count;              // queries; none in slices past those of a sequence with few rows
  int kv_head, kv_heads;
  int first, group, first_row, hidden;  // hidden: tokens that the first row does not see
  const int* pages;

  __device__ __forceinline__ Slice(const int* table, const int* lengths, const int* row_starts, int table_width,
                                   int kv_head_count, int group_size) {
    const int sequence = blockIdx.z;
    kv_heads = kv_head_count, group = group_size;
    kv_head = blockIdx.x % kv_heads;
    first = blockIdx.x / kv_heads * QUERIES;
    length = lengths[sequence];
    pages = table + static_cast<long long>(sequence) * table_width;
    first_row = row_starts[sequence];
    const int rows = row_starts[sequence + 1] - first_row;
    hidden = rows - 1;
    count = min(QUERIES, rows * group - first);
    const int held = (length + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const int span = (table_width + static_cast<int>(gridDim.y) - 1) / static_cast<int>(gridDim.y);
    splits = max(1, (held + span - 1) / span);
    begin = min(static_cast<int>(blockIdx.y) * span * PAGE_TOKENS, length);
    end = min(begin + span * PAGE_TOKENS, length);
  }

  __device__ __forceinline__ bool idle() const { return count <= 0 || static_cast<int>(blockIdx.y) >= splits; }
  __device__ __forceinline__ int row(int j) const { return first_row + (first + j) / group; }
  __device__ __forceinline__ int head(int j) const { return kv_head * group + (first + j) % group; }

  // Where query j lies in tensors [rows, heads, ...], counted in heads.
  __device__ __forceinline__ long long place(int j) const {
    return static_cast<long long>(row(j)) * (kv_heads * group) + head(j);
  }

  // Tokens that query j sees; none if it does not exist.
  __device__ __forceinline__ int seen(int j) const { return j < count ? length - hidden + (first + j) / group : 0; }

  // The place of a token in the stores.
  __device__ __forceinline__ long long token(int t) const {
    return place_of(__ldg(pages + t / PAGE_TOKENS), kv_heads, kv_head, t % PAGE_TOKENS);
  }
};
