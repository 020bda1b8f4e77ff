// Idea: while a tile is multiplied, the next one is on its way to registers, from page to page; SM70 has no cp.async.
// Removes the wait for memory from every tile.
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

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_prefill(const half* __restrict__ q, int q_row, int q_head, const void* __restrict__ k,
                      const half* __restrict__ k_params, const void* __restrict__ v, const half* __restrict__ v_params,
                      int kv_heads, const int* __restrict__ tables, int table_width,
                      const int* __restrict__ lengths,
                      const int* __restrict__ row_starts, const int* __restrict__ tile_starts, int sequences,
                      const int* __restrict__ kept_index, const int* __restrict__ kept_count, int most_kept,
                      float factor, const half* __restrict__ gate, int gate_row, int gate_head,
                      half* __restrict__ out, float* __restrict__ lse) {
  __shared__ uint4 shared[(PARTS + 2) * TILE_SIZE];
  uint4 *queries = shared, *weights = queries + PARTS * TILE_SIZE, *tile = weights + TILE_SIZE;
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
  int page = work.place(0);
  long long place = place_of(work.page_at(page), kv_heads, kv_head, 0);
  KeyTile next_keys;
  KeyScales next_scales;
  next_keys.load(KeyTile::Source(keys, place), 0);
  next_scales.load(keys, place, 0);
  for (int n = 0; n < work.pages; n++) {
    const KeyTile::Source key_source(keys, place);
    const ValueTile::Source value_source(values, place);
    ValueTile next_values;
    __syncwarp();
    row_sums.store(notes);  // where the warp has read its weights
    Product s = {};
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      __syncthreads();  // nobody reads the tile before any more
      next_keys.store(tile);
      next_scales.store(notes, part, factor);
      __syncthreads();
      if (part + 1 < PARTS) {
        next_keys.load(key_source, part + 1);
        next_scales.load(keys, place, part + 1);
      } else {
        next_values.load(value_source, 0);
      }
      begin_part(s, notes, part, lane);
      multiply_keys(s, queries + part * TILE_SIZE, tile, lane);
    }
    scale_scores(s, notes, factor, lane);
    mask_future(s, work.position + warp_row - page * PAGE_TOKENS, lane);
    softmax.step(s, sums, weights, lane);
    const int held = work.held(page);
    page = work.place(min(n + 1, work.pages - 1));  // at the end the last once more: cheaper than to ask
    place = place_of(work.page_at(page), kv_heads, kv_head, 0);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      __syncthreads();
      next_values.store(tile, held);
      __syncthreads();
      if (part + 1 < PARTS) {
        next_values.load(value_source, part + 1);
      } else {
        next_keys.load(KeyTile::Source(keys, place), 0);
        next_scales.load(keys, place, 0);
      }
      multiply_values(sums[part], weights, tile, lane);
    }
  }
  finish_rows(sums, softmax, queries, work, out, lse, gate, gate_row, gate_head);
}
