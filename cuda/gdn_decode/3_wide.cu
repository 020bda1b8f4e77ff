// Idea: a lane has four neighbouring columns of a band of rows, whose k and q it keeps; all loads go out at once.
// Removes three of every four loads and stores of the state, the copies of k and q in shared memory, and a barrier.
//
// Per value head, with its state S fp32 [KEY_DIM, VALUE_DIM], g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b):
//   S <- e^g S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q;
//   out = norm_weight (o / sqrt(mean(o^2) + eps)) silu(z)
// qkv: [rows, q | k | v], key_heads, key_heads and value heads of them; q and k are normalised, q is scaled. z, b, a:
// [rows, value heads ...] with any distance between rows; out: dense. states: [slots, value heads, KEY_DIM, VALUE_DIM],
// changed in place: row r has slots[r], a state of zeros if starts[r] is 0. group: value heads that share a key head.
// Grid: (value heads, rows).
//   KEY_DIM, VALUE_DIM  64 or 128
//
// Two blocks share a multiprocessor: each has its whole state, up to 64 KB, under way before it uses any of it, and
// while one waits for its bands to meet, the other one's loads and stores go on.
#if !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "gdn_decode is compiled with -D KEY_DIM and VALUE_DIM"
#endif
#if (KEY_DIM != 64 && KEY_DIM != 128) || (VALUE_DIM != 64 && VALUE_DIM != 128)
#error "KEY_DIM and VALUE_DIM are 64 or 128"
#endif

#include "gdn_decode/bands.cuh"

constexpr int THREADS = 256, COLUMNS = 4;     // of a lane
constexpr int SHARING = VALUE_DIM / COLUMNS;  // lanes that have a row together: 32 or 16
constexpr int BANDS = THREADS / SHARING;      // 8 or 16
constexpr int ROWS = KEY_DIM / BANDS;         // of a band: 4 to 16

// A band's elements of k or q, as they were stored.
struct Elements {
  static constexpr int CHUNK = ROWS < 8 ? ROWS : 8;
  HalfBits<CHUNK> bits[ROWS / CHUNK];

  __device__ __forceinline__ explicit Elements(const half* from) {
#pragma unroll
    for (int i = 0; i < ROWS / CHUNK; i++) bits[i] = reinterpret_cast<const HalfBits<CHUNK>*>(from)[i];
  }
  // i is known when the kernel is compiled.
  __device__ __forceinline__ float operator[](int i) const {
    return __half2float(reinterpret_cast<const half*>(bits)[i]);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_decode(const half* __restrict__ qkv, const half* __restrict__ z, const half* __restrict__ b,
               const half* __restrict__ a, const float* __restrict__ a_log, const float* __restrict__ dt_bias,
               const float* __restrict__ norm_weight, const long long* __restrict__ slots,
               const int* __restrict__ starts, float* __restrict__ states, half* __restrict__ out, int key_heads,
               int group, long long z_stride, long long b_stride, long long a_stride, float eps) {
  const Step step(qkv, z, z_stride, out, states, slots, starts, key_heads, group);
  const int band = threadIdx.x / SHARING, lane = threadIdx.x % SHARING;
  float* rows = step.state + band * ROWS * VALUE_DIM + lane * COLUMNS;
  float s[ROWS][COLUMNS] = {};
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    if (!step.fresh) load(rows + i * VALUE_DIM, s[i]);
  }
  const Elements k(step.k + band * ROWS), q(step.q + band * ROWS);
  const Gates gates(b, b_stride, a, a_stride, a_log, dt_bias);
  Column mine;
  if (has_column()) mine.load(step, norm_weight);

  float of_k[COLUMNS] = {}, of_q[COLUMNS] = {};
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      s[i][j] *= gates.decay;
      of_k[j] = fmaf(s[i][j], k[i], of_k[j]);
      of_q[j] = fmaf(s[i][j], q[i], of_q[j]);
    }
  }
  __shared__ Meeting<BANDS> met;
  met.of_k[band][lane] = make_float4(of_k[0], of_k[1], of_k[2], of_k[3]);
  met.of_q[band][lane] = make_float4(of_q[0], of_q[1], of_q[2], of_q[3]);
  __syncthreads();
  if (has_column()) mine.add_up(met, gates.beta);
  __syncthreads();
  const float4 d = met.delta[lane];
  const float delta[COLUMNS] = {d.x, d.y, d.z, d.w};
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) s[i][j] = fmaf(k[i], delta[j], s[i][j]);
    store(rows + i * VALUE_DIM, s[i]);
  }
  if (has_column()) mine.store(met, step, eps);
}
