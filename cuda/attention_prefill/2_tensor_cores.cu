// Idea: both products run on the tensor cores, from tiles of a whole page in shared memory.
// Removes seven of every eight instructions that multiply, and the conversions of their operands to floats.
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

#include "attention_prefill/scores.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_prefill(const half* __restrict__ q, int q_row, int q_head, const void* __restrict__ k,
                      const half* __restrict__ k_params, const void* __restrict__ v, const half* __restrict__ v_params,
                      int kv_heads, const int* __restrict__ tables, int table_width,
                      const int* __restrict__ lengths,
                      const int* __restrict__ row_starts, const int* __restrict__ tile_starts, int sequences,
                      const int* __restrict__ kept_index, const int* __restrict__ kept_count, int most_kept,
                      float factor, const half* __restrict__ gate, int gate_row, int gate_head,
                      half* __restrict__ out, float* __restrict__ lse) {
  extern __shared__ uint4 shared[];
  uint4 *queries = shared, *weights = queries + PARTS * TILE_SIZE, *page_tiles = weights + TILE_SIZE;
  const Work work(tables, table_width, lengths, row_starts, tile_starts, sequences, kept_index, kept_count, most_kept);
  const PagedStore<K_BITS, HEAD_DIM> keys{k, k_params};
  const PagedStore<V_BITS, HEAD_DIM> values{v, v_params};
  const int kv_head = work.head() / (gridDim.x / kv_heads);
  const int warp_row = threadIdx.x / WARP * WM;
  const Lane lane;
  share_queries(queries, q, q_row, q_head, work);
  float* notes = warp_notes(weights);
  const RowSums row_sums(queries);

  Product sums[PARTS] = {};
  Softmax softmax;
  for (int n = 0; n < work.pages; n++) {
    const int page = work.place(n);
    const long long place = place_of(work.page_at(page), kv_heads, kv_head, 0);
    const KeyTile::Source key_source(keys, place);
    const ValueTile::Source value_source(values, place);
    __syncthreads();  // nobody reads the page before any more
    KeyScales scales[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      KeyTile fetched;
      fetched.load(key_source, part);
      scales[part].load(keys, place, part);
      fetched.store(page_tiles + part * TILE_SIZE);
    }
    row_sums.store(notes);
    __syncthreads();
    Product s = {};
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      scales[part].store(notes, part, factor);
      __syncwarp();
      begin_part(s, notes, part, lane);
      __syncwarp();  // the next part takes the place of this one's notes
      multiply_keys(s, queries + part * TILE_SIZE, page_tiles + part * TILE_SIZE, lane);
    }
    scale_scores(s, notes, factor, lane);
    mask_future(s, work.position + warp_row - page * PAGE_TOKENS, lane);
    softmax.step(s, sums, weights, lane);
    __syncthreads();  // all have multiplied the keys, whose place the values take
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      ValueTile fetched;
      fetched.load(value_source, part);
      fetched.store(page_tiles + part * TILE_SIZE, work.held(page));
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      multiply_values(sums[part], weights, page_tiles + part * TILE_SIZE, lane);
    }
  }
  finish_rows(sums, softmax, queries, work, out, lse, gate, gate_row, gate_head);
}
