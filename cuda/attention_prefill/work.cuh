// What the rungs of prefill attention share besides their products: which rows and pages are a block's, its queries in
// shared memory, and what becomes of the result.
#pragma once

#include "common/kv_tile.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP;
constexpr int BM = 64;                  // rows of queries: of one sequence and one head
constexpr int PARTS = HEAD_DIM / PAIR_SPAN;  // of a head
constexpr float NO_SCORE = -1e30f;      // below every score, and finite: no difference of infinities arises
constexpr float LN_2 = 0.693147181f;

// Weights are 2^SHIFT times what the formula says, which no quotient shows: those that would be too small for a half,
// and are many in long contexts, then are not lost.
constexpr float SHIFT = 12.0f;
constexpr float LARGEST_SHIFTED = 4194304.0f;  // 2^22: to larger numbers 12 can be added only in part

using KeyTile = KVTile<true, K_BITS, HEAD_DIM, THREADS>;
using ValueTile = KVTile<false, V_BITS, HEAD_DIM, THREADS>;

__device__ __forceinline__ float masked() { return __int_as_float(0xff800000); }  // -infinity: its weight is 0

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where a piece of a row of 64 halves lies: four neighbouring rows have the same piece in different banks.
__device__ __forceinline__ int row_piece(int row, int piece) { return row * TILE_PIECES + (piece ^ (row & 3)); }

// The tile of queries that is a block's, and what it sees.
struct Work {
  int first_row;      // of all rows
  int rows;           // up to BM
  int position;       // of its first row in the sequence
  const int* tables;  // of all sequences
  const int* kept;    // lists of places in them, of all tiles; null: all places
  int table;          // where the sequence's pages begin in tables; an offset is one register, an address is two
  int list;           // where the tile's list begins in kept
  int pages;          // how many it walks

  // Blocks of a sequence's last tiles, which see most, start first; those of one KV head run at the same time.
  __device__ __forceinline__ Work(const int* all_tables, int table_width, const int* lengths, const int* row_starts,
                                  const int* tile_starts, int sequences, const int* kept_index, const int* kept_count,
                                  int most_kept)
      : tables(all_tables), kept(kept_index) {
    const int tile = gridDim.y - 1 - blockIdx.y;
    int sequence = 0;
    for (int above = sequences; above - sequence > 1;) {
      const int middle = (sequence + above) / 2;
      (tile_starts[middle] <= tile ? sequence : above) = middle;
    }
    const int row = (tile - tile_starts[sequence]) * BM;  // of the sequence's
    first_row = row_starts[sequence] + row;
    rows = min(BM, row_starts[sequence + 1] - first_row);
    position = lengths[sequence] - (row_starts[sequence + 1] - row_starts[sequence]) + row;
    table = sequence * table_width;
    pages = (position + rows - 1) / PAGE_TOKENS + 1;
    if (kept) {
      const int visible = pages, tile_and_head = tile * gridDim.x + head();
      list = tile_and_head * most_kept;
      pages = kept_count[tile_and_head];
      while (pages > 0 && kept[list + pages - 1] >= visible) pages--;
    }
  }

  // The n-th page that it walks: where it stands in the sequence, and in the pool.
  __device__ __forceinline__ int place(int n) const { return kept ? kept[list + n] : n; }
  __device__ __forceinline__ int page_at(int page_place) const { return tables[table + page_place]; }

  __device__ __forceinline__ int head() const { return blockIdx.x; }  // of the queries

  // How many tokens of the page at a place are no later than the tile's last row; more than a page has: all.
  __device__ __forceinline__ int held(int page_place) const { return position + rows - page_place * PAGE_TOKENS; }

  // Where a row of a tensor [T, heads, ...] with these strides begins. Past the last row it is given once more.
  __device__ __forceinline__ long long row_at(int row, int row_stride, int head_stride) const {
    return static_cast<long long>(first_row + min(row, rows - 1)) * row_stride +
           static_cast<long long>(head()) * head_stride;
  }
};

// The block's queries, as PARTS tiles of BM rows.
__device__ __forceinline__ void share_queries(uint4* shared, const half* q, int row_stride, int head_stride,
                                              const Work& work) {
  for (int i = threadIdx.x; i < BM * PARTS * TILE_PIECES; i += THREADS) {
    const int row = i / (PARTS * TILE_PIECES), piece = i % (PARTS * TILE_PIECES);
    const uint4* from = reinterpret_cast<const uint4*>(q + work.row_at(row, row_stride, head_stride));
    shared[piece / TILE_PIECES * TILE_SIZE + row_piece(row, piece % TILE_PIECES)] = from[piece];
  }
}

// Eight results times the sigmoid of their gates.
__device__ __forceinline__ uint4 gated(uint4 piece, uint4 gates) {
  half2* out = reinterpret_cast<half2*>(&piece);
  const half2* gate = reinterpret_cast<const half2*>(&gates);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 x = __half22float2(out[i]), g = __half22float2(gate[i]);
    out[i] = __floats2half2_rn(x.x / (1.0f + __expf(-g.x)), x.y / (1.0f + __expf(-g.y)));
  }
  return piece;
}

// Rows first .. first + COUNT - 1 of the tile, which lie in shared memory as the queries did, to out [T, heads, D]: by
// one warp, 16 bytes a lane.
template <int COUNT>
__device__ __forceinline__ void store_rows(half* out, const uint4* shared, const Work& work, int first,
                                           const half* gate, int gate_row, int gate_head) {
  constexpr int ROW_PIECES = PARTS * TILE_PIECES;
  for (int i = threadIdx.x % WARP; i < COUNT * ROW_PIECES; i += WARP) {
    const int row = first + i / ROW_PIECES, piece = i % ROW_PIECES;
    if (row >= work.rows) break;
    uint4 value = shared[piece / TILE_PIECES * TILE_SIZE + row_piece(row, piece % TILE_PIECES)];
    if (gate) value = gated(value, reinterpret_cast<const uint4*>(gate + work.row_at(row, gate_row, gate_head))[piece]);
    reinterpret_cast<uint4*>(out + work.row_at(row, gridDim.x * HEAD_DIM, HEAD_DIM))[piece] = value;
  }
}
