// Idea: a thread per output element, which looks for its partner in the other half.
// Removes the copies (halves swapped, signs changed, halves joined) that the same takes as tensor operations.
//
// Of every head, the pairs (j, j + ROTARY_DIM / 2) turn by the angle of their position; dimensions from ROTARY_DIM on
// pass through. q, k: [tokens, heads, HEAD_DIM], q_stride and k_stride elements from one token to the next; q_out and
// k_out are dense. cos, sin: [tokens, ROTARY_DIM], of which this reads the second half, where the sine has its sign.
// BLOCKS_PER_TOKEN consecutive blocks compute one token.
//   HEAD_DIM, ROTARY_DIM  elements of a head, and how many of them turn
//   Q_HEADS, K_HEADS      heads of q and k; K_HEADS 0: q alone
//   THREADS               of a block
//   VEC                   not used by this rung
#if !defined(HEAD_DIM) || !defined(ROTARY_DIM) || !defined(Q_HEADS) || !defined(K_HEADS) || !defined(THREADS) || \
    !defined(VEC)
#error "rope is compiled with -D HEAD_DIM, ROTARY_DIM, Q_HEADS, K_HEADS, THREADS and VEC"
#endif

#include <cuda_fp16.h>

constexpr int HALF_ROTARY = ROTARY_DIM / 2;
constexpr int ELEMENTS = (Q_HEADS + K_HEADS) * HEAD_DIM;
constexpr int BLOCKS_PER_TOKEN = (ELEMENTS + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const half* __restrict__ q, const half* __restrict__ k, const float* __restrict__ cos,
         const float* __restrict__ sin, half* __restrict__ q_out, half* __restrict__ k_out, long long q_stride,
         long long k_stride) {
  const long long token = blockIdx.x / BLOCKS_PER_TOKEN;
  const int element = (blockIdx.x % BLOCKS_PER_TOKEN) * THREADS + threadIdx.x;
  if (element >= ELEMENTS) return;
  const int head = element / HEAD_DIM, d = element % HEAD_DIM;
  const bool is_q = head < Q_HEADS;
  const half* from = is_q ? q + token * q_stride + head * HEAD_DIM : k + token * k_stride + (head - Q_HEADS) * HEAD_DIM;
  half* to = is_q ? q_out + (token * Q_HEADS + head) * HEAD_DIM : k_out + (token * K_HEADS + head - Q_HEADS) * HEAD_DIM;
  if (d >= ROTARY_DIM) {
    to[d] = from[d];
    return;
  }
  const int j = d % HALF_ROTARY;
  const float c = cos[token * ROTARY_DIM + HALF_ROTARY + j], s = sin[token * ROTARY_DIM + HALF_ROTARY + j];
  const float own = __half2float(from[d]);
  const float partner = __half2float(from[d < HALF_ROTARY ? d + HALF_ROTARY : d - HALF_ROTARY]);
  to[d] = __float2half_rn(own * c + (d < HALF_ROTARY ? -partner : partner) * s);
}
