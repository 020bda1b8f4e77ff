// Idea: a thread per token and channel, which reads its inputs from global memory; norm and history have launches.
// Removes the framework's copies: history joined with the new rows, and a tensor for each product of a tap.
//
// gdn_conv: out[t, c] = silu(sum over j of weight[c, j] * input[t - WIDTH + 1 + j, c]), silu(x) = x / (1 + exp(-x)).
// Inputs are a sequence's rows of u and, before its first, the history of its slot; zeros if it starts at position 0.
// normalise_heads, in place: heads of q and k become x / sqrt(sum(x^2) + 1e-6), q also times KEY_DIM^-0.5.
// keep_history: the last WIDTH - 1 inputs of every sequence, oldest first, replace the history of its slot.
// u: [rows, channels], rows u_stride apart; weight: [channels, WIDTH]; history: [slots, WIDTH - 1, channels];
// out: [rows, channels], dense; channels in the order q | k | v, of which q and k have heads. Sequence s has rows
// row_starts[s] .. row_starts[s + 1] - 1. Grids: gdn_conv (rows, a thread for each channel), normalise_heads
// (rows, heads of q and k) with KEY_DIM threads, keep_history (sequences, a thread for each channel).
//   KEY_DIM  elements of a head of q or k: 64 or 128
//   WIDTH    inputs of the convolution: 2 to 4
//   RUN      not used by this rung
//   THREADS  of a block; it divides the number of channels, which is a multiple of 64
//   VEC      not used by this rung
#if !defined(KEY_DIM) || !defined(WIDTH) || !defined(RUN) || !defined(THREADS) || !defined(VEC)
#error "gdn_conv is compiled with -D KEY_DIM, WIDTH, RUN, THREADS and VEC"
#endif
#if KEY_DIM != 64 && KEY_DIM != 128
#error "KEY_DIM is 64 or 128"
#endif
#if WIDTH < 2 || WIDTH > 4
#error "WIDTH is 2, 3 or 4"
#endif
#if 64 % THREADS
#error "THREADS divides 64"
#endif

#include <cuda_fp16.h>

#include "common/reduce.cuh"

constexpr int PAST = WIDTH - 1;  // inputs that a sequence remembers
constexpr float QUERY_SCALE = KEY_DIM == 64 ? 0.125f : 0.0883883476f;

__device__ __forceinline__ int channel_of_thread() { return blockIdx.y * THREADS + threadIdx.x; }

extern "C" __global__ void __launch_bounds__(THREADS)
    gdn_conv(const half* __restrict__ u, const float* __restrict__ weight, const half* __restrict__ history,
             const long long* __restrict__ slots, const int* __restrict__ starts, const int* __restrict__ row_starts,
             half* __restrict__ out, int sequences, int channels, long long u_stride) {
  const int row = blockIdx.x, channel = channel_of_thread();
  int sequence = 0;
  for (int above = sequences; above - sequence > 1;) {
    const int middle = (sequence + above) / 2;
    (row_starts[middle] <= row ? sequence : above) = middle;
  }
  float sum = 0.0f;
  for (int j = 0; j < WIDTH; j++) {
    const long long from = row - PAST + j;
    const int before = row_starts[sequence] - static_cast<int>(from);  // how far before the sequence's first row
    float input = 0.0f;
    if (before <= 0) {
      input = __half2float(u[from * u_stride + channel]);
    } else if (starts[sequence] > 0) {
      input = __half2float(history[(slots[sequence] * PAST + PAST - before) * channels + channel]);
    }
    sum = fmaf(weight[channel * WIDTH + j], input, sum);
  }
  out[static_cast<long long>(row) * channels + channel] = __float2half_rn(sum / (1.0f + expf(-sum)));
}

extern "C" __global__ void __launch_bounds__(KEY_DIM)
    normalise_heads(half* __restrict__ out, int key_heads, int channels) {
  const long long at = static_cast<long long>(blockIdx.x) * channels + blockIdx.y * KEY_DIM + threadIdx.x;
  const float x = __half2float(out[at]);
  const float scale = rsqrtf(block_sum<KEY_DIM>(x * x) + 1e-6f);
  out[at] = __float2half_rn(x * scale * (blockIdx.y < key_heads ? QUERY_SCALE : 1.0f));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    keep_history(const half* __restrict__ u, half* __restrict__ history, const long long* __restrict__ slots,
                 const int* __restrict__ starts, const int* __restrict__ row_starts, int channels,
                 long long u_stride) {
  const int sequence = blockIdx.x, channel = channel_of_thread();
  const int rows = row_starts[sequence + 1] - row_starts[sequence];
  half* kept = history + slots[sequence] * PAST * channels + channel;
  for (int j = 0; j < PAST; j++) {  // in this order: what is read was not yet overwritten
    const int before = PAST - j;    // the last row is one before the end
    half input = __float2half_rn(0.0f);
    if (before <= rows) {
      input = u[static_cast<long long>(row_starts[sequence + 1] - before) * u_stride + channel];
    } else if (starts[sequence] > 0) {
      input = kept[(j + rows) * channels];
    }
    kept[j * channels] = input;
  }
}
