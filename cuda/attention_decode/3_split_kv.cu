// Idea: the context is divided over blocks; the last one to arrive adds up what each has left.
// Removes the idle multiprocessors where there are few sequences: one on two KV heads would keep 2 of 80 busy.
//
// The result is that of 1_warp_per_head. Grid (kv_heads * slices, splits, sequences), see slice.cuh: a split is some
// whole pages, as many in every sequence, so that a grid made for long contexts serves short ones; splits without
// tokens do nothing. partials: fp32, arrivals: counters, see merge.cuh.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         query heads times rows that share a load: 1 to 8; more are several slices
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

#include "attention_decode/packed.cuh"

constexpr int BLOCKS = 3;  // on a multiprocessor: at most 168 registers a thread

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    attention_decode(const half* __restrict__ q, const void* __restrict__ k, const half* __restrict__ k_params,
                     const void* __restrict__ v, const half* __restrict__ v_params, const int* __restrict__ table,
                     const int* __restrict__ lengths, const int* __restrict__ row_starts, const half* __restrict__ gate,
                     half* __restrict__ out, float* __restrict__ lse, float* partials, int* arrivals, int table_width,
                     int kv_heads, int group, long long gate_row, long long gate_head, float scale) {
  const Slice slice(table, lengths, row_starts, table_width, kv_heads, group);
  if (slice.idle()) return;
  __shared__ Totals totals;
  attend(q, {k, k_params}, {v, v_params}, slice, scale, totals);
  if (!merge_splits(totals, slice, partials, arrivals)) return;
  Result{gate, gate_row, gate_head, out, lse}.store(totals, slice);
}
