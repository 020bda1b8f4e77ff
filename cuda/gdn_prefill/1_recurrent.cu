// Idea: the recurrence as it is written, token after token; a thread has a column of the state in its registers.
// Removes the state's way to memory and back between tokens: it is read once and written once for a whole prompt.
//
// Per value head: S <- e^g S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q, with beta = sigmoid(b) and g =
// -exp(a_log) softplus(a + dt_bias), all in fp32. qkv [T, q | k | v], q and k normalised, q scaled; b, a [T, heads],
// rows of any distance; state [slots, heads, KEY_DIM, VALUE_DIM], in place: of a sequence at position 0 it is not read.
// slots, starts [S], row_starts [S + 1]: labkit/ops/state_batch.py. out [T, heads, VALUE_DIM]. One block for a value
// head of a sequence: grid (heads, S).
//   KEY_DIM, VALUE_DIM  64 or 128
#if !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "gdn_prefill is compiled with -D KEY_DIM and VALUE_DIM"
#endif

#include "gdn_prefill/head.cuh"

// A row's keys and queries as floats, for all threads.
__device__ __forceinline__ void share(float (&k)[KEY_DIM], float (&q)[KEY_DIM], const half* row, const Channels& at) {
  for (int i = threadIdx.x; i < KEY_DIM; i += VALUE_DIM) {
    k[i] = __half2float(row[at.k + i]);
    q[i] = __half2float(row[at.q + i]);
  }
}

extern "C" __global__ void __launch_bounds__(VALUE_DIM)
    gdn_prefill(const half* __restrict__ qkv, const half* __restrict__ b, long long b_row, const half* __restrict__ a,
                long long a_row, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
                float* __restrict__ state, const long long* __restrict__ slots, const int* __restrict__ starts,
                const int* __restrict__ row_starts, int key_heads, float* __restrict__ out) {
  __shared__ __align__(16) float keys[2][KEY_DIM], queries[2][KEY_DIM];  // of two rows in turn: one barrier for each
  const int head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y, column = threadIdx.x;
  const Channels at(head, heads, key_heads);
  const Gates gates(b, b_row, a, a_row, a_log, dt_bias, head);
  float* own = state + (slots[sequence] * heads + head) * KEY_DIM * VALUE_DIM + column;
  const bool fresh = starts[sequence] == 0;
  float s[KEY_DIM];
#pragma unroll
  for (int i = 0; i < KEY_DIM; i++) s[i] = fresh ? 0.0f : own[i * VALUE_DIM];

  for (int row = row_starts[sequence]; row < row_starts[sequence + 1]; row++) {
    const half* from = qkv + static_cast<long long>(row) * at.width;
    float(&k)[KEY_DIM] = keys[row & 1];
    float(&q)[KEY_DIM] = queries[row & 1];
    share(k, q, from, at);
    __syncthreads();
    const float decay = expf(gates.log_decay(row));
    float found = 0.0f;
#pragma unroll
    for (int i = 0; i < KEY_DIM; i++) found += k[i] * s[i];
    const float d = gates.strength(row) * (__half2float(from[at.v + column]) - decay * found);
    float o = 0.0f;
    asm volatile("" ::: "memory");  // keys are read again: kept from above, they would need as many registers as s
#pragma unroll
    for (int i = 0; i < KEY_DIM; i++) {
      s[i] = fmaf(k[i], d, decay * s[i]);
      o += q[i] * s[i];
    }
    out[(static_cast<long long>(row) * heads + head) * VALUE_DIM + column] = o;
  }
#pragma unroll
  for (int i = 0; i < KEY_DIM; i++) own[i * VALUE_DIM] = s[i];
}
