// Idea: a block has a head of a sequence, a thread one column of its state, over which it goes three times.
// Removes the launches between gates, delta rule and norm: what is not the state never leaves the block.
//
// Per value head, with its state S fp32 [KEY_DIM, VALUE_DIM], g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b):
//   S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q;
//   out = norm_weight (o / sqrt(mean(o^2) + eps)) silu(z)
// qkv: [rows, q | k | v], key_heads, key_heads and value heads of them; q and k are normalised, q is scaled. z, b, a:
// [rows, value heads ...] with any distance between rows; out: dense. states: [slots, value heads, KEY_DIM, VALUE_DIM],
// changed in place: row r has slots[r], a state of zeros if starts[r] is 0. group: value heads that share a key head.
// Grid: (value heads, rows).
//   KEY_DIM, VALUE_DIM  64 or 128
#if !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "gdn_decode is compiled with -D KEY_DIM and VALUE_DIM"
#endif
#if (KEY_DIM != 64 && KEY_DIM != 128) || (VALUE_DIM != 64 && VALUE_DIM != 128)
#error "KEY_DIM and VALUE_DIM are 64 or 128"
#endif

#include "gdn_decode/step.cuh"

extern "C" __global__ void __launch_bounds__(VALUE_DIM)
    gdn_decode(const half* __restrict__ qkv, const half* __restrict__ z, const half* __restrict__ b,
               const half* __restrict__ a, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
               const float* __restrict__ norm_weight, const long long* __restrict__ slots,
               const int* __restrict__ starts, float* __restrict__ states, half* __restrict__ out, int key_heads,
               int group, long long z_stride, long long b_stride, long long a_stride, float eps) {
  const Step step(qkv, z, z_stride, out, states, slots, starts, key_heads, group);
  const Gates gates(b, b_stride, a, a_stride, a_log, dt_bias);
  const int column = threadIdx.x;
  float of_k = 0.0f;
  for (int i = 0; i < KEY_DIM; i++) of_k = fmaf(step.old(i, column), __half2float(step.k[i]), of_k);
  const float delta = gates.beta * (__half2float(step.v[column]) - gates.decay * of_k);
  for (int i = 0; i < KEY_DIM; i++) {
    step.state[i * VALUE_DIM + column] = fmaf(__half2float(step.k[i]), delta, gates.decay * step.old(i, column));
  }
  float o = 0.0f;
  for (int i = 0; i < KEY_DIM; i++) o = fmaf(step.state[i * VALUE_DIM + column], __half2float(step.q[i]), o);
  const float squares = block_sum<VALUE_DIM>(o * o);
  step.out[column] = gated_norm(o, squares, norm_weight[column], __half2float(step.z[column]), eps);
}
