// Idea: a warp takes the keys or the values of one head of one token, and rounds them to 8 or 4 bits on their way.
// Removes half or three quarters of the bytes of the cache, which every later token reads again; and all barriers.
//
// k, v: [tokens, kv_heads, HEAD_DIM], k_stride and v_stride elements from one token to the next. The pages of keys and
// of values: [pages, kv_heads, PAGE_SIZE] rows of HEAD_DIM elements in 16, 8 or 4 bits, with their scales in a tensor
// of their own (none for 16 bits). Keys in 4 bits are rotated first. Token t goes to page[t], offset[t]. Who writes the
// first slot of a page also clears the slots behind those that this step writes: what an earlier owner left there may
// be a NaN. Tokens of one page lie next to one another, in order. Grid: (tokens, a warp for each K and V of a head).
//   KV_HEADS, HEAD_DIM  of k and v; HEAD_DIM is 64, 128 or 256 where anything is quantized
//   PAGE_SIZE           tokens of a page
//   THREADS             of a block, a multiple of 32
//   VEC                 elements that are loaded together, or moved where they stay as they are: up to 8
//   K_BITS, V_BITS      16, 8 or 4 bits of an element
#if !defined(KV_HEADS) || !defined(HEAD_DIM) || !defined(PAGE_SIZE) || !defined(THREADS) || !defined(VEC) || \
    !defined(K_BITS) || !defined(V_BITS)
#error "kv_write is compiled with -D KV_HEADS, HEAD_DIM, PAGE_SIZE, THREADS, VEC, K_BITS and V_BITS"
#endif
#if PAGE_SIZE != 64
#error "A warp looks at the 64 tokens of a page"
#endif
#if HEAD_DIM % VEC
#error "VEC must divide HEAD_DIM"
#endif
#if (K_BITS != 16 || V_BITS != 16) && HEAD_DIM != 64 && HEAD_DIM != 128 && HEAD_DIM != 256
#error "Heads that are quantized have a HEAD_DIM of 64, 128 or 256"
#endif

#include "common/hadamard.cuh"
#include "common/kv_quant.cuh"

constexpr int WARPS = THREADS / WARP;

// from: one head of one token; row: where it goes.
template <int BITS, bool ROTATED, int DIM>
__device__ __forceinline__ void write(const half* from, const PageRow<BITS, DIM>& row) {
  if constexpr (BITS == 16) {
    copy_row<DIM, VEC>(row.halves(), from);
  } else {
    float x[DIM / WARP];
    load_head<DIM / WARP, VEC>(from, x);
    if (ROTATED) rotate(x);
    quantize(x, row);
  }
}

// first: the token is the first of its page.
template <int BITS, bool ROTATED>
__device__ __forceinline__ void write_and_clear(const half* from, void* values, half* params, const long long* page,
                                                long long row_index, int token, int tokens, bool first) {
  const PageRow<BITS, HEAD_DIM> row(values, params, row_index);
  write<BITS, ROTATED>(from, row);
  if (first) clear_behind<BITS == 16 ? VEC : 8>(row, tokens_in_page(page, token, tokens));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    kv_write(const half* __restrict__ k, const half* __restrict__ v, const long long* __restrict__ page,
             const long long* __restrict__ offset, void* __restrict__ k_values, half* __restrict__ k_params,
             void* __restrict__ v_values, half* __restrict__ v_params, int tokens, long long k_stride,
             long long v_stride) {
  const int token = blockIdx.x, item = blockIdx.y * WARPS + threadIdx.x / WARP;
  if (item >= 2 * KV_HEADS) return;
  const int head = item < KV_HEADS ? item : item - KV_HEADS;
  const long long row = (page[token] * KV_HEADS + head) * PAGE_SIZE + offset[token];
  const bool first = offset[token] == 0;
  if (item < KV_HEADS) {
    write_and_clear<K_BITS, K_BITS == 4>(k + token * k_stride + head * HEAD_DIM, k_values, k_params, page, row, token,
                                         tokens, first);
  } else {
    write_and_clear<V_BITS, false>(v + token * v_stride + head * HEAD_DIM, v_values, v_params, page, row, token, tokens,
                                   first);
  }
}
