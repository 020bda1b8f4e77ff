// Idea: a thread turns eight neighbouring pairs, whose halves are 16 bytes each.
// Removes seven of every eight load and store instructions, and as many address computations.
//
// Of every head, the pairs (j, j + ROTARY_DIM / 2) turn by the angle of their position; dimensions from ROTARY_DIM on
// pass through. q, k: [tokens, heads, HEAD_DIM], q_stride and k_stride elements from one token to the next; q_out and
// k_out are dense. cos, sin: [tokens, ROTARY_DIM], of which this reads the second half, where the sine has its sign.
// BLOCKS_PER_TOKEN consecutive blocks compute one token.
//   HEAD_DIM, ROTARY_DIM  elements of a head, and how many of them turn
//   Q_HEADS, K_HEADS      heads of q and k; K_HEADS 0: q alone
//   THREADS               of a block
//   VEC                   pairs of a thread: 8, or fewer where ROTARY_DIM / 2, HEAD_DIM or an address is no multiple
#if !defined(HEAD_DIM) || !defined(ROTARY_DIM) || !defined(Q_HEADS) || !defined(K_HEADS) || !defined(THREADS) || \
    !defined(VEC)
#error "rope is compiled with -D HEAD_DIM, ROTARY_DIM, Q_HEADS, K_HEADS, THREADS and VEC"
#endif
#if (ROTARY_DIM / 2) % VEC || HEAD_DIM % VEC
#error "VEC must divide ROTARY_DIM / 2 and HEAD_DIM"
#endif

#include "common/vector.cuh"

constexpr int HALF_ROTARY = ROTARY_DIM / 2;
constexpr int WORK = (HEAD_DIM - HALF_ROTARY) / VEC;  // of a head: its pairs, and the elements that pass through
constexpr int ITEMS = (Q_HEADS + K_HEADS) * WORK;
constexpr int BLOCKS_PER_TOKEN = (ITEMS + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const half* __restrict__ q, const half* __restrict__ k, const float* __restrict__ cos,
         const float* __restrict__ sin, half* __restrict__ q_out, half* __restrict__ k_out, long long q_stride,
         long long k_stride) {
  const long long token = blockIdx.x / BLOCKS_PER_TOKEN;
  const int item = (blockIdx.x % BLOCKS_PER_TOKEN) * THREADS + threadIdx.x;
  if (item >= ITEMS) return;
  const int head = item / WORK, j = item % WORK * VEC;
  const bool is_q = head < Q_HEADS;
  const half* from = is_q ? q + token * q_stride + head * HEAD_DIM : k + token * k_stride + (head - Q_HEADS) * HEAD_DIM;
  half* to = is_q ? q_out + (token * Q_HEADS + head) * HEAD_DIM : k_out + (token * K_HEADS + head - Q_HEADS) * HEAD_DIM;
  if (j >= HALF_ROTARY) {
    copy<VEC>(to + HALF_ROTARY + j, from + HALF_ROTARY + j);
    return;
  }
  float c[VEC], s[VEC], first[VEC], second[VEC], turned[VEC];
  load(cos + token * ROTARY_DIM + HALF_ROTARY + j, c);
  load(sin + token * ROTARY_DIM + HALF_ROTARY + j, s);
  load(from + j, first);
  load(from + j + HALF_ROTARY, second);
#pragma unroll
  for (int i = 0; i < VEC; i++) turned[i] = first[i] * c[i] - second[i] * s[i];
  store(to + j, turned);
#pragma unroll
  for (int i = 0; i < VEC; i++) turned[i] = second[i] * c[i] + first[i] * s[i];
  store(to + j + HALF_ROTARY, turned);
}
