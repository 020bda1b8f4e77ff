// Operands of the scan's products on the tensor cores, and how they pass through shared memory. A sum runs over the
// rows of the state or of the chunk, eight at a time; the block's 32 columns are those of one mma, eight for each
// quad-pair.
#pragma once

#include "common/mma_columns.cuh"
#include "gdn_prefill/within.cuh"

constexpr int SLICE = 32;                            // columns of the state that a block has
constexpr int STATE_ROWS = 16;                       // rows of the state that a warp has: two mma
constexpr int SCAN_WARPS = KEY_DIM / STATE_ROWS, SCAN_THREADS = SCAN_WARPS * WARP;
constexpr int ROW_TILES = CHUNK / SCAN_WARPS / MMA_M;  // rows of the chunk that a warp has, in mma
constexpr int SCORE_PIECES = CHUNK / 8;
constexpr int TILE_OF_KEYS = CHUNK * KEY_PIECES, TILE_OF_SCORES = CHUNK * SCORE_PIECES;  // in pieces of 16 bytes

// threadIdx.x, in a way that the compiler cannot know: what is computed from it is then computed where it is used. Kept
// through the loop over chunks, all places of all operands would take registers that the prefetched operands need.
__device__ __forceinline__ int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The 64 rows of a tile on their way from memory: a thread's share, until there is room for it.
template <int PIECES>
struct Fetched {
  static constexpr int COUNT = CHUNK * PIECES / SCAN_THREADS;
  static constexpr int STEP = SCAN_THREADS / PIECES;  // rows from one of a thread's pieces to the next
  uint4 data[COUNT];

  __device__ __forceinline__ void load(const half* from) {
    const uint4* first = reinterpret_cast<const uint4*>(from) + thread_now();
#pragma unroll
    for (int n = 0; n < COUNT; n++) data[n] = first[n * SCAN_THREADS];
  }

  // Rows of qkv from a channel on; zeros for those that are not the sequence's.
  __device__ __forceinline__ void load(const half* qkv, int channel, int width, const Chunk& chunk) {
    const int thread = thread_now(), row = thread / PIECES;
    const half* first = qkv + chunk.at(row) * width + (channel + 8 * (thread % PIECES));
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      data[n] = uint4{};
      if (chunk.has(row + n * STEP)) data[n] = *reinterpret_cast<const uint4*>(first + n * STEP * width);
    }
  }

  __device__ __forceinline__ void store(uint4* tile) const {
    const int thread = thread_now(), row = thread / PIECES, piece = thread % PIECES;
#pragma unroll
    for (int n = 0; n < COUNT; n++) tile[piece_at<PIECES>(row + n * STEP, piece)] = data[n];
  }
};

// The right operand of a product over N rows: for each eight of them and each lane 16 bytes, four columns (those from
// 8 quad-pair + 4 (lane >> 4) on) of row lane & 3 and of row 4 + (lane & 3). In every second eight the two rows are
// exchanged: else the lanes that store the state, which have rows of two eights, would meet in the same banks.
constexpr int EIGHT = WARP;  // pieces of eight rows

// Lanes of quad-pairs 2 and 3 trade places, else their stores would meet the banks of quad-pairs 0 and 1.
__device__ __forceinline__ int lane_place(int lane) { return lane ^ (lane >> 2 & 2); }

// Where accumulators i and i + 1 of a product go, in words of four bytes. eight: which of the operand's; four: whether
// its first four rows or the others. (That is row (i & 2) + (lane & 1) of the four, for the lane of that row and
// column.)
__device__ __forceinline__ int word_of_pair(int lane, int i, int eight, int four) {
  const int word = 4 * ((lane & 1) + (lane >> 2 & 2) + (lane & 12)) + (lane >> 1 & 1) + 2 * ((four ^ eight) & 1);
  return (word ^ 4 * (i & 2)) + 16 * (i & 4) + 4 * EIGHT * eight;
}

// What a lane has of its row ``four`` (0: the first four rows, 1: the others).
__device__ __forceinline__ uint2 half_of(const uint4& piece, int eight, int four) {
  return (four ^ eight) & 1 ? make_uint2(piece.z, piece.w) : make_uint2(piece.x, piece.y);
}

// c += a b over eight rows of b, with a by rows.
__device__ __forceinline__ void multiply_rows(float (&c)[8], const uint4& a, const uint4& b, int eight) {
  const uint2 first = half_of(b, eight, 0), second = half_of(b, eight, 1);
  mma_m8n8k4_by_rows(c, a.x, a.y, first.x, first.y);
  mma_m8n8k4_by_rows(c, a.z, a.w, second.x, second.y);
}

// A power of two that brings numbers up to ``largest`` to what halves hold, with as many small ones as can be, and
// back. It ends where fp32 sums that take several such factors might overflow: numbers below 2^-20 are brought near 1
// only.
struct Scale {
  float up, down;

  __device__ __forceinline__ explicit Scale(float largest) {
    const int exponent = max(-20, min(60, (__float_as_int(largest) >> 23) - 127));
    up = __int_as_float((127 + 14 - exponent) << 23);
    down = __int_as_float((127 - 14 + exponent) << 23);
  }
};

__device__ __forceinline__ unsigned halves(float x, float y, float factor) {
  return bits_of(__floats2half2_rn(x * factor, y * factor));
}

template <int N>
__device__ __forceinline__ float largest_of(const float (&x)[N][8], float before) {
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int i = 0; i < 8; i++) before = fmaxf(before, fabsf(x[n][i]));
  }
  return before;
}

// The greatest of what the warps left.
__device__ __forceinline__ float over_warps(const float (&of_warp)[SCAN_WARPS]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < SCAN_WARPS; i++) largest = fmaxf(largest, of_warp[i]);
  return largest;
}
