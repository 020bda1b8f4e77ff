// Idea: scores of a page are used and forgotten: the sums so far are rescaled whenever a row's maximum grows.
// Removes the matrix of scores, [T, tokens] for every head, written to memory and read twice.
//
// out[t][h] = sum_j p_j v_j / sum_j p_j, p_j = exp(scale q . k_j), over the tokens j up to that of row t; then times
// sigmoid(gate) if there is a gate; lse [T, heads]: log of the sum of exp, if wanted. Products in fp32.
// q, gate [T, heads, D] with strides in elements; out [T, heads, D]. k, v: pages, see common/paged.cuh, with params
// from 8 bits down; tables [S, table_width], lengths [S], row_starts, tile_starts [S + 1]: labkit/ops/paged_batch.py.
// kept_index [tiles, heads, most_kept], kept_count [tiles, heads]: the pages that a tile reads, or null for all.
// One block for 64 rows of one sequence and one head: grid (heads, tiles). factor = scale log2(e).
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS)
#error "attention_prefill is compiled with -D HEAD_DIM, K_BITS and V_BITS"
#endif

#include "attention_prefill/key_scales.cuh"

constexpr int SHARES = THREADS / BM;                 // threads of a row
constexpr int TOKENS = PAGE_TOKENS / SHARES;         // whose scores one of them has: every second of a page
constexpr int ELEMENTS = PAIR_SPAN / SHARES;         // of each part of the head, whose sums it has
constexpr int ELEMENT_PIECES = ELEMENTS / 8;

__device__ __forceinline__ void as_floats(uint4 piece, float (&out)[8]) {
  const half2* pairs = reinterpret_cast<const half2*>(&piece);
#pragma unroll
  for (int i = 0; i < 4; i++) out[2 * i] = __low2float(pairs[i]), out[2 * i + 1] = __high2float(pairs[i]);
}

// Scores of one row over 64 elements: of tokens share, share + 2, ... Those of keys in 4 bits first become multiples of
// the scales of these elements, and last comes what the biases add.
__device__ __forceinline__ void add_scores(float (&s)[TOKENS], const uint4* q, const uint4* keys, int row, int share,
                                           const float* notes, int part) {
  if (K_BITS == 4 && part > 0) {
#pragma unroll
    for (int t = 0; t < TOKENS; t++) s[t] *= notes[RATIOS_AT + SHARES * t + share];
  }
  float row_sum = 0.0f;
#pragma unroll 1
  for (int p = 0; p < TILE_PIECES; p++) {
    float x[8], y[8];
    as_floats(q[row_piece(row, p)], x);
#pragma unroll
    for (int i = 0; i < 8; i++) row_sum += x[i];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      as_floats(keys[key_place(SHARES * t + share, p)], y);
#pragma unroll
      for (int i = 0; i < 8; i++) s[t] += x[i] * y[i];
    }
  }
  if constexpr (K_BITS == 4) {
#pragma unroll
    for (int t = 0; t < TOKENS; t++) s[t] += notes[BIASES_AT + SHARES * t + share] * row_sum;
  }
}

// The row's weights times a page's values, for this thread's elements.
__device__ __forceinline__ void add_values(float (&sums)[ELEMENTS], const uint4* weights, const uint4* values, int row,
                                           int share) {
#pragma unroll 1
  for (int p = 0; p < PAGE_TOKENS / 8; p++) {
    float w[8], x[8];
    as_floats(weights[row_piece(row, p)], w);
#pragma unroll
    for (int t = 0; t < 8; t++) {
#pragma unroll
      for (int e = 0; e < ELEMENT_PIECES; e++) {
        as_floats(values[value_place(8 * p + t, share * ELEMENT_PIECES + e)], x);
#pragma unroll
        for (int i = 0; i < 8; i++) sums[8 * e + i] += w[t] * x[i];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_prefill(const half* __restrict__ q, int q_row, int q_head, const void* __restrict__ k,
                      const half* __restrict__ k_params, const void* __restrict__ v, const half* __restrict__ v_params,
                      int kv_heads, const int* __restrict__ tables, int table_width,
                      const int* __restrict__ lengths,
                      const int* __restrict__ row_starts, const int* __restrict__ tile_starts, int sequences,
                      const int* __restrict__ kept_index, const int* __restrict__ kept_count, int most_kept,
                      float factor, const half* __restrict__ gate, int gate_row, int gate_head,
                      half* __restrict__ out, float* __restrict__ lse) {
  __shared__ uint4 queries[PARTS * TILE_SIZE], weights[TILE_SIZE], tile[TILE_SIZE];
  const Work work(tables, table_width, lengths, row_starts, tile_starts, sequences, kept_index, kept_count, most_kept);
  const PagedStore<K_BITS, HEAD_DIM> keys{k, k_params};
  const PagedStore<V_BITS, HEAD_DIM> values{v, v_params};
  const int kv_head = work.head() / (gridDim.x / kv_heads);
  const int row = threadIdx.x / SHARES, share = threadIdx.x % SHARES;
  share_queries(queries, q, q_row, q_head, work);
  float* notes = warp_notes(weights);

  float sums[PARTS][ELEMENTS] = {}, top = NO_SCORE, sum = 0.0f;
  for (int n = 0; n < work.pages; n++) {
    const int page = work.place(n);
    const long long place = place_of(work.page_at(page), kv_heads, kv_head, 0);
    const KeyTile::Source key_source(keys, place);
    const ValueTile::Source value_source(values, place);
    float s[TOKENS] = {};
    for (int part = 0; part < PARTS; part++) {
      KeyTile fetched;
      KeyScales scales;
      fetched.load(key_source, part);
      scales.load(keys, place, part);
      __syncthreads();  // nobody reads the tile before any more
      fetched.store(tile);
      scales.store(notes, part, factor);
      __syncthreads();
      add_scores(s, queries + part * TILE_SIZE, tile, row, share, notes, part);
    }
    const float before = top;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      const int token = SHARES * t + share;
      const bool future = page * PAGE_TOKENS + token > work.position + row;
      s[t] = future ? masked() : s[t] * (K_BITS == 16 ? factor : notes[token]);
      top = fmaxf(top, s[t]);
    }
    top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
    const float shrink = exp2_fast(before - top);
    sum *= shrink;
    __syncwarp();  // weights take the place of the notes
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {  // rows four apart meet in a bank: four cycles each
      const int token = SHARES * t + share;
      const float weight = exp2_fast(s[t] - top + SHIFT);
      sum += weight;
      reinterpret_cast<half*>(weights + row_piece(row, token / 8))[token % 8] = __float2half_rn(weight);
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      ValueTile fetched;
      fetched.load(value_source, part);
      __syncthreads();
      fetched.store(tile, work.held(page));
      __syncthreads();
#pragma unroll
      for (int i = 0; i < ELEMENTS; i++) sums[part][i] *= shrink;
      add_values(sums[part], weights, tile, row, share);
    }
  }

  sum += __shfl_xor_sync(ALL_LANES, sum, 1);
#pragma unroll
  for (int part = 0; part < PARTS; part++) {  // the result takes the place of the queries
#pragma unroll
    for (int e = 0; e < ELEMENT_PIECES; e++) {
      half2 halves[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* two = sums[part] + 8 * e + 2 * i;
        halves[i] = __floats2half2_rn(two[0] / sum, two[1] / sum);
      }
      queries[part * TILE_SIZE + row_piece(row, share * ELEMENT_PIECES + e)] = *reinterpret_cast<const uint4*>(halves);
    }
  }
  if (lse && share == 0 && row < work.rows) {
    lse[work.row_at(row, gridDim.x, 1)] = (top - SHIFT + log2f(sum)) * LN_2;
  }
  __syncwarp();
  store_rows<WARP_ROWS>(out, queries, work, threadIdx.x / WARP * WARP_ROWS, gate, gate_row, gate_head);
}
