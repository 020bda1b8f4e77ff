// Idea: a launch for each step: norm, RoPE, rotation, and the pages; a warp takes one head of one token.
// Removes the copies that make q, k and v dense: each step reads heads at any distance, and leaves dense halves.
//
// Of every head of q and k: norm_heads (with Q_NORM, K_NORM), turn_heads (RoPE on the first ROTARY_DIM elements),
// rotate_heads (Hadamard, where K_BITS is 4); then qk_norm_rope_kv stores k and v in their pages [pages, kv_heads,
// PAGE_SIZE], rounded to K_BITS and V_BITS: token t goes to page[t], offset[t]. Who writes the first slot of a page
// also clears the slots behind those that this step writes; tokens of one page lie next to one another, in order.
// q, k, v: [tokens, heads, HEAD_DIM] with any distance between tokens and between heads; q_out, k_out are dense.
// cos, sin: [tokens, ROTARY_DIM]; the first half of sin has its sign. Grid: (tokens, a warp for each head).
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

// Heads of q and of k that a launch reads and writes, and how far they lie apart where it reads.
struct Heads {
  const half *q, *k;
  half *q_out, *k_out;
  int q_heads, k_heads;
  long long q_stride, q_head_stride, k_stride, k_head_stride;

  __device__ __forceinline__ bool is_q() const { return head_of_warp() < q_heads; }
  __device__ __forceinline__ bool is_k() const { return !is_q() && head_of_warp() < q_heads + k_heads; }

  __device__ __forceinline__ void load(float (&x)[PER_LANE]) const {
    const long long token = blockIdx.x, head = head_of_warp(), k_head = head - q_heads;
    const half* from =
        is_q() ? q + token * q_stride + head * q_head_stride : k + token * k_stride + k_head * k_head_stride;
    load_head<PER_LANE, VEC>(from, x);
  }

  __device__ __forceinline__ void store(const float (&x)[PER_LANE]) const {
    const long long token = blockIdx.x, head = head_of_warp(), k_head = head - q_heads;
    store_head(is_q() ? q_out + (token * q_heads + head) * HEAD_DIM : k_out + (token * k_heads + k_head) * HEAD_DIM, x);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    norm_heads(const half* __restrict__ q, const half* __restrict__ k, const float* __restrict__ q_norm,
               const float* __restrict__ k_norm, half* __restrict__ q_out, half* __restrict__ k_out, int q_heads,
               int kv_heads, long long q_stride, long long q_head_stride, long long k_stride, long long k_head_stride,
               float eps) {
  const Heads heads{q, k, q_out, k_out, q_heads, kv_heads, q_stride, q_head_stride, k_stride, k_head_stride};
  if (!heads.is_q() && !heads.is_k()) return;
  float x[PER_LANE];
  heads.load(x);
  if (heads.is_q() ? Q_NORM : K_NORM) normalise(x, heads.is_q() ? q_norm : k_norm, eps);
  heads.store(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    turn_heads(const half* __restrict__ q, const half* __restrict__ k, const float* __restrict__ cos,
               const float* __restrict__ sin, half* __restrict__ q_out, half* __restrict__ k_out, int q_heads,
               int kv_heads, long long q_stride, long long q_head_stride, long long k_stride, long long k_head_stride) {
  const Heads heads{q, k, q_out, k_out, q_heads, kv_heads, q_stride, q_head_stride, k_stride, k_head_stride};
  if (!heads.is_q() && !heads.is_k()) return;
  const long long factors = static_cast<long long>(blockIdx.x) * ROTARY_DIM;
  float x[PER_LANE];
  heads.load(x);
  turn(x, cos + factors, sin + factors);
  heads.store(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rotate_heads(const half* __restrict__ q, const half* __restrict__ k, half* __restrict__ q_out,
                 half* __restrict__ k_out, int q_heads, int kv_heads, long long q_stride, long long q_head_stride,
                 long long k_stride, long long k_head_stride) {
  const Heads heads{q, k, q_out, k_out, q_heads, kv_heads, q_stride, q_head_stride, k_stride, k_head_stride};
  if (!heads.is_q() && !heads.is_k()) return;
  float x[PER_LANE];
  heads.load(x);
  rotate(x);
  heads.store(x);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_rope_kv(const half* __restrict__ k, const half* __restrict__ v, const long long* __restrict__ page,
                    const long long* __restrict__ offset, void* __restrict__ k_values, half* __restrict__ k_params,
                    void* __restrict__ v_values, half* __restrict__ v_params, int tokens, int kv_heads,
                    long long k_stride, long long k_head_stride, long long v_stride, long long v_head_stride) {
  const long long token = blockIdx.x;
  const int head = head_of_warp();
  if (head >= 2 * kv_heads) return;
  const bool is_k = head < kv_heads;
  const int kv_head = is_k ? head : head - kv_heads;
  const long long slot = (page[token] * kv_heads + kv_head) * PAGE_SIZE + offset[token];
  if (is_k) {
    const PageRow<K_BITS, HEAD_DIM> row(k_values, k_params, slot);
    store_unchanged<K_BITS>(row, k + token * k_stride + kv_head * k_head_stride);
    clear_if_fresh(row, page, offset, token, tokens);
  } else {
    const PageRow<V_BITS, HEAD_DIM> row(v_values, v_params, slot);
    store_unchanged<V_BITS>(row, v + token * v_stride + kv_head * v_head_stride);
    clear_if_fresh(row, page, offset, token, tokens);
  }
}
