// Idea: one launch, in which a head stays in a warp's registers from the projection to its page.
// Removes up to three launches, the trips of q and k to memory and back between them, and the roundings on the way.
//
// Of every head of q and k: RMSNorm (with Q_NORM, K_NORM), RoPE on the first ROTARY_DIM elements, and the Hadamard
// rotation where K_BITS is 4. q goes to q_out [tokens, q_heads, HEAD_DIM]; k, and v as it comes, go into their pages
// [pages, kv_heads, PAGE_SIZE], rounded to K_BITS and V_BITS: token t to page[t], offset[t]. Who writes the first slot
// of a page also clears the slots behind those that this step writes; tokens of one page lie next to one another, in
// order. q, k, v: [tokens, heads, HEAD_DIM] with any distance between tokens and between heads. cos, sin:
// [tokens, ROTARY_DIM]; the first half of sin has its sign. Grid: (tokens, a warp for each head of q, k and v).
//   HEAD_DIM, ROTARY_DIM  elements of a head: 64, 128 or 256; and how many of them turn
//   Q_NORM, K_NORM        1: heads of q, of k have a norm
//   K_BITS, V_BITS        16, 8 or 4 bits of an element in the pages
//   PAGE_SIZE             tokens of a page
//   THREADS               of a block, a multiple of 32
//   VEC                   elements that are loaded together, up to HEAD_DIM / 32
#if !defined(HEAD_DIM) || !defined(ROTARY_DIM) || !defined(Q_NORM) || !defined(K_NORM) || !defined(K_BITS) || \
    !defined(V_BITS) || !defined(PAGE_SIZE) || !defined(THREADS) || !defined(VEC)
#error "qk_norm_rope_kv is compiled with -D HEAD_DIM ROTARY_DIM Q_NORM K_NORM K_BITS V_BITS PAGE_SIZE THREADS VEC"
#endif
#if HEAD_DIM != 64 && HEAD_DIM != 128 && HEAD_DIM != 256
#error "HEAD_DIM is 64, 128 or 256"
#endif
#if PAGE_SIZE != 64
#error "A warp looks at the 64 tokens of a page"
#endif

#include "qk_norm_rope_kv/head.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_rope_kv(const half* __restrict__ q, const half* __restrict__ k, const half* __restrict__ v,
                    const float* __restrict__ cos, const float* __restrict__ sin, const float* __restrict__ q_norm,
                    const float* __restrict__ k_norm, const long long* __restrict__ page,
                    const long long* __restrict__ offset, half* __restrict__ q_out, void* __restrict__ k_values,
                    half* __restrict__ k_params, void* __restrict__ v_values, half* __restrict__ v_params, int tokens,
                    int q_heads, int kv_heads, long long q_stride, long long q_head_stride, long long k_stride,
                    long long k_head_stride, long long v_stride, long long v_head_stride, float eps) {
  const long long token = blockIdx.x;
  const int head = head_of_warp();
  if (head >= q_heads + 2 * kv_heads) return;
  const bool is_q = head < q_heads, is_v = head >= q_heads + kv_heads;
  const int kv_head = head - q_heads - (is_v ? kv_heads : 0);  // where this is one
  const long long slot = (page[token] * kv_heads + kv_head) * PAGE_SIZE + offset[token];
  if (is_v) {
    const PageRow<V_BITS, HEAD_DIM> row(v_values, v_params, slot);
    store_unchanged<V_BITS>(row, v + token * v_stride + kv_head * v_head_stride);
    clear_if_fresh(row, page, offset, token, tokens);
    return;
  }
  const half* from =
      is_q ? q + token * q_stride + head * q_head_stride : k + token * k_stride + kv_head * k_head_stride;
  float x[PER_LANE];
  load_head<PER_LANE, VEC>(from, x);
  if (is_q ? Q_NORM : K_NORM) normalise(x, is_q ? q_norm : k_norm, eps);
  turn(x, cos + token * ROTARY_DIM, sin + token * ROTARY_DIM);
  if (K_BITS == 4) rotate(x);
  if (is_q) {
    store_head(q_out + (token * q_heads + head) * HEAD_DIM, x);
    return;
  }
  const PageRow<K_BITS, HEAD_DIM> row(k_values, k_params, slot);
  store_row<K_BITS>(row, x);
  clear_if_fresh(row, page, offset, token, tokens);
}
