// Idea: the state stays in registers: 256 threads read it once, in bands of rows, and write it once.
// Removes two readings of the state, and long sums: a thread has up to 64 rows of a column instead of all.
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

#include "gdn_decode/bands.cuh"

constexpr int THREADS = 256;
constexpr int BANDS = THREADS / VALUE_DIM;  // 2 or 4
constexpr int ROWS = KEY_DIM / BANDS;       // of a band: 16 to 64

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_decode(const half* __restrict__ qkv, const half* __restrict__ z, const half* __restrict__ b,
               const half* __restrict__ a, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
               const float* __restrict__ norm_weight, const long long* __restrict__ slots,
               const int* __restrict__ starts, float* __restrict__ states, half* __restrict__ out, int key_heads,
               int group, long long z_stride, long long b_stride, long long a_stride, float eps) {
  const Step step(qkv, z, z_stride, out, states, slots, starts, key_heads, group);
  const int band = threadIdx.x / VALUE_DIM, column = threadIdx.x % VALUE_DIM;
  float s[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) s[i] = step.old(band * ROWS + i, column);

  const Gates gates(b, b_stride, a, a_stride, a_log, dt_bias);
  Column mine;
  if (has_column()) mine.load(step, norm_weight);
  __shared__ float k[KEY_DIM], q[KEY_DIM];
  for (int i = threadIdx.x; i < KEY_DIM; i += THREADS) k[i] = __half2float(step.k[i]), q[i] = __half2float(step.q[i]);
  __syncthreads();

  float of_k = 0.0f, of_q = 0.0f;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    of_k = fmaf(s[i], k[band * ROWS + i], of_k);
    of_q = fmaf(s[i], q[band * ROWS + i], of_q);
  }
  __shared__ Meeting<BANDS> met;
  element(met.of_k[band], column) = gates.decay * of_k;
  element(met.of_q[band], column) = gates.decay * of_q;
  __syncthreads();
  if (has_column()) mine.add_up(met, gates.beta);
  __syncthreads();
  const float delta = element(met.delta, column);
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    step.state[(band * ROWS + i) * VALUE_DIM + column] = fmaf(k[band * ROWS + i], delta, gates.decay * s[i]);
  }
  if (has_column()) mine.store(met, step, eps);
}
