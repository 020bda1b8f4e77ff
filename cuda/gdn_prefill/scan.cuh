// The steps of the scan on the tensor cores. The sums of a warp: 16 rows of the state, and a share of the chunk's rows.
#pragma once

#include "gdn_prefill/tensor.cuh"

using State = float[STATE_ROWS / MMA_M][8];
using Rows = float[ROW_TILES][8];

// A block's shared memory: w, q and the state for their products, then, in the same place, k, P and the deltas.
struct Shared {
  static constexpr int P_AT = TILE_OF_KEYS, DELTAS_AT = P_AT + TILE_OF_SCORES, STATE_AT = 2 * TILE_OF_KEYS;  // pieces
  static constexpr int DELTAS = SCORE_PIECES * EIGHT;
  static constexpr int FIRST = STATE_AT + KEY_PIECES * EIGHT, SECOND = DELTAS_AT + 4 * DELTAS;
  uint4 room[FIRST > SECOND ? FIRST : SECOND];
  float largest[3][SCAN_WARPS];  // of the state, the deltas, and those that decay until the chunk's end

  __device__ __forceinline__ uint4* w() { return room; }
  __device__ __forceinline__ uint4* q() { return room + TILE_OF_KEYS; }
  __device__ __forceinline__ uint4* state() { return room + STATE_AT; }
  __device__ __forceinline__ uint4* k() { return room; }
  __device__ __forceinline__ uint4* p() { return room + P_AT; }
  // part 1: what part 0, rounded to halves, has lost.
  __device__ __forceinline__ uint4* deltas(int part) { return room + DELTAS_AT + part * 2 * DELTAS; }
  __device__ __forceinline__ uint4* tails(int part) { return deltas(part) + DELTAS; }
};

// Where a lane's sums lie: rows of the chunk or of the state, and columns. Accumulators i and i + 1 are neighbours.
struct Lane {
  int lane, warp, first_column;

  __device__ __forceinline__ Lane()
      : lane(threadIdx.x % WARP), warp(threadIdx.x / WARP),
        first_column(blockIdx.x * SLICE + accumulator_column(threadIdx.x % WARP, 0)) {}
  __device__ __forceinline__ int column(int i) const { return first_column + (i & 4); }
  __device__ __forceinline__ int row(int tile, int i) const {
    return MMA_M * (warp * ROW_TILES + tile) + accumulator_row(lane, i);
  }
  // Tile 0 has the first four of every eight rows of the state, tile 1 the others: as 16 bytes of k bring them.
  __device__ __forceinline__ int state_row(int tile, int i) const {
    return STATE_ROWS * warp + 8 * (lane >> 4) + 4 * tile + (lane & 1) + (i & 2);
  }
};

__device__ __forceinline__ void load_state(State& s, const float* from, bool fresh, const Lane& lane) {
#pragma unroll
  for (int tile = 0; tile < 2; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      float two[2] = {};
      if (!fresh) load(from + lane.state_row(tile, i) * VALUE_DIM + lane.column(i), two);
      s[tile][i] = two[0], s[tile][i + 1] = two[1];
    }
  }
}

__device__ __forceinline__ void write_state(float* to, const State& s, const Lane& lane) {
#pragma unroll
  for (int tile = 0; tile < 2; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      store(to + lane.state_row(tile, i) * VALUE_DIM + lane.column(i), {s[tile][i], s[tile][i + 1]});
    }
  }
}

template <int N>
__device__ __forceinline__ void multiply_by(float (&sums)[N][8], float factor) {
#pragma unroll
  for (int i = 0; i < 8 * N; i++) sums[i / 8][i % 8] *= factor;
}

// The state as an operand of products over its rows.
__device__ __forceinline__ void store_state(uint4* to, const State& s, float factor, const Lane& lane) {
  unsigned* words = reinterpret_cast<unsigned*>(to);
#pragma unroll
  for (int tile = 0; tile < 2; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int word = word_of_pair(lane.lane, i, 2 * lane.warp + (lane.lane >> 4), tile);
      words[word] = halves(s[tile][i], s[tile][i + 1], factor);
    }
  }
}

// Two numbers as halves, or (part 1) what those have lost.
__device__ __forceinline__ unsigned part_of(int part, float x, float y) {
  const half2 rounded = __floats2half2_rn(x, y);
  return bits_of(part == 0 ? rounded : __floats2half2_rn(x - __low2float(rounded), y - __high2float(rounded)));
}

// Rows of the chunk, each times its factor of ``factors`` if there are any, as an operand of products over them.
__device__ __forceinline__ void store_rows(uint4* to, int part, const Rows& rows, const float* factors, float factor,
                                           const Lane& lane) {
  unsigned* words = reinterpret_cast<unsigned*>(to);
#pragma unroll
  for (int tile = 0; tile < ROW_TILES; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int word = word_of_pair(lane.lane, i, lane.warp * ROW_TILES + tile, lane.lane >> 4);
      const float both = factors ? factors[lane.row(tile, i)] * factor : factor;
      words[word] = part_of(part, rows[tile][i] * both, rows[tile][i + 1] * both);
    }
  }
}

// ws += W S, qs += Q S, of the warp's rows.
__device__ __forceinline__ void multiply_state(Rows& ws, Rows& qs, Shared& shared, const Lane& lane) {
  const int row = lane.warp * ROW_TILES * MMA_M + fragment_row(lane.lane);
  const uint4* state = shared.state() + lane_place(lane.lane);
#pragma unroll 4
  for (int p = 0; p < KEY_PIECES; p++) {
    const uint4 s = state[p * EIGHT];
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; tile++) {
      const int place = piece_at<KEY_PIECES>(row + tile * MMA_M, p);
      multiply_rows(ws[tile], shared.w()[place], s, p);
      multiply_rows(qs[tile], shared.q()[place], s, p);
    }
  }
}

// From W S to D; from Q S to what the state gives to the outputs. Returns the largest of D, and of e^(G_63 - G) D.
__device__ __forceinline__ float2 finish_deltas(Rows& d, Rows& o, const float* u, const float* notes, float of_state,
                                                const Lane& lane) {
  float2 largest = {};
#pragma unroll
  for (int tile = 0; tile < ROW_TILES; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int row = lane.row(tile, i);
      const float factor = notes[DECAYS_AT + row] * of_state;
      float two[2];
      load(u + row * VALUE_DIM + lane.column(i), two);
#pragma unroll
      for (int n = 0; n < 2; n++) {
        o[tile][i + n] *= factor;
        d[tile][i + n] = fmaf(-factor, d[tile][i + n], two[n]);
      }
      const float larger = fmaxf(fabsf(d[tile][i]), fabsf(d[tile][i + 1]));
      largest.x = fmaxf(largest.x, larger);
      largest.y = fmaxf(largest.y, larger * notes[TAILS_AT + row]);
    }
  }
  return largest;
}

// o += P D of the warp's rows, s += K^T (e^(G_63 - G) D) of its rows of the state.
__device__ __forceinline__ void multiply_deltas(Rows& o, State& s, Shared& shared, int part, const Lane& lane) {
  const int row = lane.warp * ROW_TILES * MMA_M + fragment_row(lane.lane);
  const uint4 *all_d = shared.deltas(part) + lane_place(lane.lane), *all_tails = all_d + Shared::DELTAS;
#pragma unroll 4
  for (int p = 0; p < SCORE_PIECES; p++) {
    const uint4 d = all_d[p * EIGHT], tails = all_tails[p * EIGHT];
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; tile++) {
      multiply_rows(o[tile], shared.p()[piece_at<SCORE_PIECES>(row + tile * MMA_M, p)], d, p);
    }
#pragma unroll
    for (int four = 0; four < 2; four++) {
      const int token = 8 * p + 4 * four + (lane.lane & 3);
      const uint4 k = shared.k()[piece_at<KEY_PIECES>(token, 2 * lane.warp + (lane.lane >> 4))];
      const uint2 tail = half_of(tails, p, four);
      mma_m8n8k4_by_columns(s[0], k.x, k.y, tail.x, tail.y);
      mma_m8n8k4_by_columns(s[1], k.z, k.w, tail.x, tail.y);
    }
  }
}

__device__ __forceinline__ void write_out(float* out, const Rows& o, float factor, const Chunk& chunk, int stride,
                                          const Lane& lane) {
  float* first = out + chunk.at(0) * stride + lane.first_column;  // offsets from here are one register each
#pragma unroll
  for (int tile = 0; tile < ROW_TILES; tile++) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int row = lane.row(tile, i);
      if (chunk.has(row)) store(first + (row * stride + (i & 4)), {o[tile][i] * factor, o[tile][i + 1] * factor});
    }
  }
}
