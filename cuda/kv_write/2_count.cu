// Idea: each thread looks at another token of the page, and the barrier counts those that found one.
// Removes the walk along the tokens of a fresh page: up to 63 loads, each waiting for the one before.
//
// k, v: [tokens, KV_HEADS, HEAD_DIM], k_stride and v_stride elements from one token to the next. k_pages, v_pages:
// [pages, KV_HEADS, PAGE_SIZE, HEAD_DIM]. Token t goes to page[t], offset[t]. Who writes the first slot of a page also
// clears the slots behind those that this step writes: what an earlier owner left there may be a NaN. Tokens of one
// page lie next to one another, in order. Grid: (tokens, KV_HEADS).
//   KV_HEADS, HEAD_DIM  of k and v
//   PAGE_SIZE           tokens of a page
//   THREADS             of a block, PAGE_SIZE or more
//   VEC                 not used by this rung
//   K_BITS, V_BITS      16: this rung writes fp16 pages only
#if !defined(KV_HEADS) || !defined(HEAD_DIM) || !defined(PAGE_SIZE) || !defined(THREADS) || !defined(VEC) || \
    !defined(K_BITS) || !defined(V_BITS)
#error "kv_write is compiled with -D KV_HEADS, HEAD_DIM, PAGE_SIZE, THREADS, VEC, K_BITS and V_BITS"
#endif
#if THREADS < PAGE_SIZE
#error "A thread looks at one token of the page: THREADS must be PAGE_SIZE or more"
#endif

#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
    kv_write(const half* __restrict__ k, const half* __restrict__ v, const long long* __restrict__ page,
             const long long* __restrict__ offset, half* __restrict__ k_pages, half* __restrict__ v_pages, int tokens,
             long long k_stride, long long v_stride) {
  const int token = blockIdx.x, head = blockIdx.y;
  k += token * k_stride + head * HEAD_DIM;
  v += token * v_stride + head * HEAD_DIM;
  const long long slot = ((page[token] * KV_HEADS + head) * PAGE_SIZE + offset[token]) * HEAD_DIM;
  for (int i = threadIdx.x; i < HEAD_DIM; i += THREADS) {
    k_pages[slot + i] = k[i];
    v_pages[slot + i] = v[i];
  }
  if (offset[token] != 0) return;  // the whole block returns: the barrier below is safe
  const int other = token + threadIdx.x;
  const int written = __syncthreads_count(other < tokens && page[other] == page[token]);
  for (int i = written * HEAD_DIM + threadIdx.x; i < PAGE_SIZE * HEAD_DIM; i += THREADS) {
    k_pages[slot + i] = __half();
    v_pages[slot + i] = __half();
  }
}
