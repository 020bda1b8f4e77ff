// Where the numbers of one value head lie, its gates, and which rows are a chunk's.
#pragma once

#include <cuda_fp16.h>

#include "common/gates.cuh"
#include "common/reduce.cuh"

constexpr int CHUNK = 64;  // positions, from a multiple of 64 on

// In a row of qkv [T, q | k | v]: where this head's parts begin. Value heads share the q and k of a key head.
struct Channels {
  int q, k, v, width;

  __device__ __forceinline__ Channels(int head, int value_heads, int key_heads)
      : q(head / (value_heads / key_heads) * KEY_DIM),
        k(key_heads * KEY_DIM + q),
        v(2 * key_heads * KEY_DIM + head * VALUE_DIM),
        width(2 * key_heads * KEY_DIM + value_heads * VALUE_DIM) {}
};

// Of one head; a and b: [T, heads], rows of any distance.
struct Gates {
  const half *b, *a;
  long long b_row, a_row;
  float rate, bias;

  __device__ __forceinline__ Gates(const half* all_b, long long b_stride, const half* all_a, long long a_stride,
                                   const float* a_log, const float* dt_bias, int head)
      : b(all_b + head), a(all_a + head), b_row(b_stride), a_row(a_stride), rate(expf(a_log[head])),
        bias(dt_bias[head]) {}

  // g <= 0: the state decays by e^g before a row.
  __device__ __forceinline__ float log_decay(long long row) const {
    return -rate * softplus(__half2float(a[row * a_row]) + bias);
  }

  // beta, from 0 to 1: how far a row's value replaces what its key finds.
  __device__ __forceinline__ float strength(long long row) const {
    return sigmoid(__half2float(b[row * b_row]));
  }
};

// Rows first + low .. first + high - 1 of all, which are low .. high - 1 of the 64 of a chunk.
struct Chunk {
  int first, low, high;

  __device__ __forceinline__ bool has(int row) const { return row >= low && row < high; }
  __device__ __forceinline__ long long at(int row) const { return static_cast<long long>(first) + row; }
};

// The rows of a sequence, as chunks: the first may begin inside, the last may end inside.
struct Rows64 {
  int first, lead, behind;  // first: of all rows, that of the chunk's position 0, which may be another sequence's

  __device__ __forceinline__ Rows64(int sequence, const int* starts, const int* row_starts)
      : lead(starts[sequence] % CHUNK), behind(row_starts[sequence + 1]) {
    first = row_starts[sequence] - lead;
  }

  // The n-th chunk that the sequence touches in this step.
  __device__ __forceinline__ Chunk chunk(int n) const {
    const int from = first + n * CHUNK;
    return {from, n == 0 ? lead : 0, min(CHUNK, behind - from)};
  }
};

// The chunks of a sequence among those that a launch works on: begin .. end - 1 of the sequence's.
struct Run {
  int begin, end;
  int shift;  // to where they lie in the workspace

  __device__ __forceinline__ Run(int sequence, const int* chunk_starts, int first_chunk, int chunk_count) {
    shift = chunk_starts[sequence] - first_chunk;
    begin = max(0, -shift);
    end = min(chunk_starts[sequence + 1] - chunk_starts[sequence], chunk_count - shift);
  }

  // Whether the sequence has seen nothing before: its slot may hold anything.
  __device__ __forceinline__ bool fresh(int start) const { return start == 0 && begin == 0; }
};

// The sequence that has a chunk.
__device__ __forceinline__ int sequence_of(int chunk, const int* chunk_starts, int sequences) {
  int sequence = 0;
  for (int above = sequences; above - sequence > 1;) {
    const int middle = (sequence + above) / 2;
    (chunk_starts[middle] <= chunk ? sequence : above) = middle;
  }
  return sequence;
}
