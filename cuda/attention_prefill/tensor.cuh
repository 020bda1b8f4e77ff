// The two products of attention on the tensor cores, and the softmax between them. A warp has 16 rows of the block's 64
// and all 64 tokens of a page: nobody else needs its weights, and its sums never leave its registers.
//
// Which token or element a column of a product is, is free as long as both operands agree. Chosen here: the four
// neighbours in a row that one lane can have. Then they go to shared memory with one store of 8 bytes.
#pragma once

#include "attention_prefill/work.cuh"
#include "common/mma.cuh"

constexpr int WM = BM / WARPS, M_TILES = WM / MMA_M;  // rows of a warp
constexpr int N_TILES = 2;                            // 64 tokens, or 64 elements of a head, are two products wide
constexpr int EIGHT_ROWS = 8 * TILE_PIECES;           // of a tile, in pieces

using Product = float[M_TILES][N_TILES][8];

// Rows of accumulators i: two of each m-tile.
__device__ __forceinline__ int upper(int i) { return i >> 1 & 1; }

// The first of four neighbouring tokens (of 64) whose scores a lane has: those of i, i + 1, i + 4 and i + 5.
__device__ __forceinline__ int four_tokens(int lane, int n) { return 16 * (lane >> 2 & 3) + 8 * n + 2 * (lane & 2); }

// Which of those four the accumulator i is.
__device__ __forceinline__ int neighbour(int i) { return (i & 1) + (i & 4) / 2; }

// The piece (eight elements) of a value that a lane multiplies; lanes of quad-pairs 0 and 1, or 2 and 3, differ by 4.
__device__ __forceinline__ int value_piece(int lane) { return 4 * (lane >> 2 & 1) + 2 * (lane >> 3 & 1) + (lane >> 4); }

// Where a lane's operands begin in a tile: its piece 0 of a row. Piece p is at (start ^ p), and the same piece eight
// rows further on at (start ^ p) + EIGHT_ROWS.
struct Lane {
  int row;    // of the warp's queries and weights, from the tile's start
  int key;    // of the token in column lane_column
  int value;  // of token lane & 3, its value_piece
  int four;   // where its four weights of n-tile 0 and its first row go, in units of 8 bytes
  int ahead;  // the first token of those less that row
  int token;  // the first of those tokens

  __device__ __forceinline__ Lane() {
    const int lane = threadIdx.x % WARP;
    row = row_piece(threadIdx.x / WARP * WM + fragment_row(lane), 0);
    // Column n of a quad-pair's eight is token (n & 1) + (n & 4) / 2 + (n & 2) * 2.
    key = key_place(16 * (lane >> 2 & 3) + (lane & 1) + 2 * (lane >> 4) + 2 * (lane & 2), 0);
    value = value_place(lane & 3, value_piece(lane));
    const int own_row = accumulator_row(lane, 0);
    token = four_tokens(lane, 0);
    four = 2 * row_piece(threadIdx.x / WARP * WM + own_row, token / 8) + token / 4 % 2;
    ahead = token - own_row;
  }
};

// s += q k^T over 64 elements. Loops over pieces are unrolled half: with all eight laid out, the assembler fetches so
// far ahead that registers run out at D = 256.
__device__ __forceinline__ void multiply_keys(Product& s, const uint4* q, const uint4* keys, const Lane& lane) {
#pragma unroll 4
  for (int p = 0; p < TILE_PIECES; p++) {
    uint4 a[M_TILES], b[N_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) a[m] = q[(lane.row ^ p % 4) + p / 4 * 4 + m * EIGHT_ROWS];
#pragma unroll
    for (int n = 0; n < N_TILES; n++) b[n] = keys[(lane.key ^ p) + n * EIGHT_ROWS];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int n = 0; n < N_TILES; n++) multiply(s[m][n], a[m], b[n]);
    }
  }
}

// sums += weights v for 64 elements.
__device__ __forceinline__ void multiply_values(Product& sums, const uint4* weights, const uint4* values,
                                                const Lane& lane) {
#pragma unroll 4
  for (int p = 0; p < PAGE_TOKENS / 8; p++) {
    uint4 a[M_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) a[m] = weights[(lane.row ^ p % 4) + p / 4 * 4 + m * EIGHT_ROWS];
#pragma unroll
    for (int four = 0; four < 2; four++) {
      const uint4 b = values[lane.value + (8 * p + 4 * four) * TILE_PIECES];
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        const unsigned a0 = four ? a[m].z : a[m].x, a1 = four ? a[m].w : a[m].y;
        mma_m8n8k4_by_rows(sums[m][0], a0, a1, b.x, b.y);
        mma_m8n8k4_by_rows(sums[m][1], a0, a1, b.z, b.w);
      }
    }
  }
}

// What a lane knows of the softmax of its four rows: two of each m-tile. Each row is eight lanes'.
struct Softmax {
  float offset[M_TILES][2];  // what is added to exponents: brings the largest so far to SHIFT
  float sum[M_TILES][2];     // of the weights that this lane has had

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int r = 0; r < 2 * M_TILES; r++) offset[r / 2][r % 2] = -NO_SCORE, sum[r / 2][r % 2] = 0.0f;
  }

  // From the scores of a page to weights, as halves in shared memory; the sums so far follow a larger maximum.
  __device__ __forceinline__ void step(const Product& s, Product (&sums)[PARTS], uint4* weights, const Lane& lane) {
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int u = 0; u < 2; u++) {
        const float before = offset[m][u];
        offset[m][u] = fminf(before, offset_of(largest(s[m], u)));
        const float shrink = exp2_fast(offset[m][u] - before);
        rescale(sums, m, u, shrink);
        sum[m][u] = sum[m][u] * shrink + weigh(s[m], u, offset[m][u], weights + m * EIGHT_ROWS, lane);
      }
    }
  }

  // The sums of whole rows, from those of eight lanes.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2 * M_TILES; r++) {
#pragma unroll
      for (int distance = 2; distance <= 8; distance *= 2) {
        sum[r / 2][r % 2] += __shfl_xor_sync(ALL_LANES, sum[r / 2][r % 2], distance);
      }
    }
  }

 private:
  static __device__ __forceinline__ float largest(const float (&s)[N_TILES][8], int u) {
    float value = NO_SCORE;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (upper(i) == u) value = fmaxf(value, s[n][i]);
      }
    }
#pragma unroll
    for (int distance = 2; distance <= 8; distance *= 2) {
      value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
  }

  // Where exponents are whole numbers anyway, as large as they are, SHIFT would be lost in part: they do without.
  static __device__ __forceinline__ float offset_of(float top) {
    return (fabsf(top) < LARGEST_SHIFTED ? SHIFT : 0.0f) - top;
  }

  static __device__ __forceinline__ void rescale(Product (&sums)[PARTS], int m, int u, float shrink) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          if (upper(i) == u) sums[part][m][n][i] *= shrink;
        }
      }
    }
  }

  static __device__ __forceinline__ float weigh(const float (&s)[N_TILES][8], int u, float offset, uint4* weights,
                                                const Lane& lane) {
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
      float w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        w[j] = exp2_fast(s[n][2 * u + (j & 1) + 2 * (j & 2)] + offset);
        total += w[j];
      }
      // Two rows on, the order of pieces is another too.
      uint2* to = reinterpret_cast<uint2*>(weights) + (lane.four ^ 2 * (n + 2 * u)) + 2 * u * 2 * TILE_PIECES;
      *to = make_uint2(bits_of(__floats2half2_rn(w[0], w[1])), bits_of(__floats2half2_rn(w[2], w[3])));
    }
    return total;
  }
};

// Scores of tokens that come after their row become -inf. position: of the warp's first row, and from the page's start.
__device__ __forceinline__ void mask_future(Product& s, int position, const Lane& lane) {
  if (position >= PAGE_TOKENS - 1) return;
  const int sees = position - lane.ahead;
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if (8 * n + neighbour(i) - MMA_M * m - (i & 2) > sees) s[m][n][i] = masked();
      }
    }
  }
}

// Lanes l and l ^ 2 have pairs of the same eight elements of a row, those of two products: they trade, so that each has
// four neighbours.
__device__ __forceinline__ uint2 four_neighbours(const float (&c)[N_TILES][8], int i, float factor) {
  const unsigned near = bits_of(__floats2half2_rn(c[0][i] * factor, c[0][i + 1] * factor));
  const unsigned far = bits_of(__floats2half2_rn(c[1][i] * factor, c[1][i + 1] * factor));
  const bool second = threadIdx.x & 2;
  const unsigned traded = __shfl_xor_sync(ALL_LANES, second ? near : far, 2);
  return second ? make_uint2(traded, far) : make_uint2(near, traded);
}

// The warp's rows of the result to shared memory, in place of its queries, and from there to out; lse on request.
__device__ __forceinline__ void finish_rows(const Product (&sums)[PARTS], Softmax& softmax, uint4* shared,
                                            const Work& work, half* out, float* lse, const half* gate, int gate_row,
                                            int gate_head) {
  const int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * WM;
  softmax.finish();
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      const int row = first + m * MMA_M + accumulator_row(lane, 2 * u);
      const float inverse = 1.0f / softmax.sum[m][u];
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {  // the columns of lanes 0 to 15 and of 16 to 31, as operands
          const int i = 4 * e + 2 * u, piece = value_piece(lane & 12) + e;
          uint4* to = shared + part * TILE_SIZE + row_piece(row, piece);
          reinterpret_cast<uint2*>(to)[lane >> 1 & 1] = four_neighbours(sums[part][m], i, inverse);
        }
      }
      if (lse && (lane & 14) == 0 && row < work.rows) {
        lse[work.row_at(row, gridDim.x, 1)] = (log2f(softmax.sum[m][u]) - softmax.offset[m][u]) * LN_2;
      }
    }
  }
  __syncwarp();
  store_rows<WM>(out, shared, work, first, gate, gate_row, gate_head);
}
