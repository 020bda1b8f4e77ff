// Idea: a warp walks a run of rows with 128 channels, the last inputs in registers, and normalises the heads it holds.
// Removes two launches, the halves between them, and all but one of the WIDTH readings of every input.
//
// out[t, c] = silu(sum over j of weight[c, j] * input[t - WIDTH + 1 + j, c]), with silu(x) = x / (1 + exp(-x)). Inputs
// are a sequence's rows of u and, before its first, the history of its slot; zeros where it starts at position 0. Heads
// of q and k then become x / sqrt(sum(x^2) + 1e-6), q also times KEY_DIM^-0.5. The last WIDTH - 1 inputs of a sequence,
// oldest first, replace the history of its slot: only the warp of its first run reads the history of these channels, so
// the same warp writes it, and no other has to wait.
// u: [rows, channels], rows u_stride apart; weight: [channels, WIDTH]; history: [slots, WIDTH - 1, channels];
// out: [rows, channels], dense; channels in the order q | k | v, key_width of them in q and in k. Sequence s has rows
// row_starts[s] .. row_starts[s + 1] - 1. Grid: (rows / RUN + sequences, a warp for each 128 channels).
//   KEY_DIM  elements of a head of q or k: 64 or 128
//   WIDTH    inputs of the convolution: 2 to 4
//   RUN      rows of a warp, at least WIDTH - 1
//   THREADS  of a block, a multiple of 32
//   VEC      channels that are loaded together, up to 4
#if !defined(KEY_DIM) || !defined(WIDTH) || !defined(RUN) || !defined(THREADS) || !defined(VEC)
#error "gdn_conv is compiled with -D KEY_DIM, WIDTH, RUN, THREADS and VEC"
#endif
#if KEY_DIM != 64 && KEY_DIM != 128
#error "KEY_DIM is 64 or 128"
#endif
#if WIDTH < 2 || WIDTH > 4
#error "WIDTH is 2, 3 or 4"
#endif
#if RUN < WIDTH - 1
#error "A run behind the first finds all inputs before it in u: RUN is at least WIDTH - 1"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr int PAST = WIDTH - 1;             // inputs that a sequence remembers
constexpr int PER_LANE = 4;                 // channels
constexpr int PIECE = WARP * PER_LANE;      // channels of a warp: one head of 128, or two of 64
constexpr int HEAD_LANES = KEY_DIM / PER_LANE;
constexpr int WARPS = THREADS / WARP;
constexpr int BLOCKS = 24 / WARPS;          // of a multiprocessor, at least: left alone, the compiler spills for more
constexpr int TOGETHER = 4;                 // rows whose loads are all on their way before the first is needed
constexpr float QUERY_SCALE = KEY_DIM == 64 ? 0.125f : 0.0883883476f;

using Channels = float[PER_LANE];

__device__ __forceinline__ void load_channels(const half* from, Channels& to) {
#pragma unroll
  for (int i = 0; i < PER_LANE; i += VEC) load(from + i, *reinterpret_cast<float(*)[VEC]>(&to[i]));
}

__device__ __forceinline__ void store_channels(half* to, const Channels& from) {
#pragma unroll
  for (int i = 0; i < PER_LANE; i += VEC) store(to + i, *reinterpret_cast<const float(*)[VEC]>(&from[i]));
}

// The sum over the lanes that share a head.
__device__ __forceinline__ float head_sum(float value) {
#pragma unroll
  for (int distance = HEAD_LANES / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_LANES, value, distance);
  }
  return value;
}

// Up to RUN rows of one sequence. Its runs begin at its first row, and run blockIdx.x counts those of all sequences so
// that nobody has to add them up: sequence s has the places from row_starts[s] / RUN + s on. They suffice, and at times
// one is left over, a run without rows.
struct Run {
  int sequence, row, rows;
  int total;   // rows of the sequence
  bool first;  // of the sequence's runs

  __device__ __forceinline__ Run(const int* row_starts, int sequences) : sequence(-1) {
    for (int others = 0; others < sequences; others += WARP) {
      const int s = others + threadIdx.x % WARP;
      sequence += __popc(__ballot_sync(ALL_LANES, s < sequences && place(row_starts[s], s) <= blockIdx.x));
    }
    const int begin = row_starts[sequence], end = row_starts[sequence + 1], run = blockIdx.x - place(begin, sequence);
    row = begin + run * RUN;
    rows = min(RUN, end - row);
    total = end - begin;
    first = run == 0;
  }

  __device__ __forceinline__ static int place(int begin, int s) { return begin / RUN + s; }
};

// ROWS rows of a lane's channels; window: the inputs before them, then those before the next row. normed: the channels
// are of q or k, whose heads get length 1, and then ``gain``.
template <int ROWS>
__device__ __forceinline__ void convolve(const half* u, long long u_stride, half* out, int channels,
                                         const float (&taps)[PER_LANE * WIDTH], Channels (&window)[PAST], bool normed,
                                         float gain) {
  Channels inputs[PAST + ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) load_channels(u + r * u_stride, inputs[PAST + r]);
#pragma unroll
  for (int i = 0; i < PAST * PER_LANE; i++) inputs[i / PER_LANE][i % PER_LANE] = window[i / PER_LANE][i % PER_LANE];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    Channels y;
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < PER_LANE; c++) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) sum = fmaf(taps[c * WIDTH + j], inputs[r + j][c], sum);
      y[c] = __fdividef(sum, 1.0f + __expf(-sum));
      squares = fmaf(y[c], y[c], squares);
    }
    if (normed) {
      const float scale = rsqrtf(head_sum(squares) + 1e-6f) * gain;
#pragma unroll
      for (int c = 0; c < PER_LANE; c++) y[c] *= scale;
    }
    store(out + static_cast<long long>(r) * channels, y);
  }
#pragma unroll
  for (int i = 0; i < PAST * PER_LANE; i++) {
    window[i / PER_LANE][i % PER_LANE] = inputs[ROWS + i / PER_LANE][i % PER_LANE];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gdn_conv(const half* __restrict__ u, const float* __restrict__ weight, half* __restrict__ history,
             const long long* __restrict__ slots, const int* __restrict__ starts, const int* __restrict__ row_starts,
             half* __restrict__ out, int sequences, int channels, int key_width, long long u_stride) {
  const Run run(row_starts, sequences);
  const int channel = (blockIdx.y * WARPS + threadIdx.x / WARP) * PIECE + threadIdx.x % WARP * PER_LANE;
  if (run.rows <= 0 || channel >= channels) return;  // q and k end with a piece: lanes leave a warp in v only
  float taps[PER_LANE * WIDTH];
  load(weight + channel * WIDTH, taps);
  half* kept = history + slots[run.sequence] * PAST * channels + channel;
  const half* inputs = u + run.row * u_stride + channel;
  const bool fresh = run.first && starts[run.sequence] == 0;
  Channels window[PAST];
#pragma unroll
  for (int p = 0; p < PAST; p++) {
    if (fresh) {
#pragma unroll
      for (int c = 0; c < PER_LANE; c++) window[p][c] = 0.0f;  // whatever an earlier owner left in the slot
    } else {
      load_channels(run.first ? kept + p * channels : inputs + (p - PAST) * u_stride, window[p]);
    }
  }

  half* to = out + static_cast<long long>(run.row) * channels + channel;
  const bool normed = channel < 2 * key_width;
  const float gain = channel < key_width ? QUERY_SCALE : 1.0f;
  int row = 0;
  for (; row + TOGETHER <= run.rows; row += TOGETHER) {
    convolve<TOGETHER>(inputs + row * u_stride, u_stride, to, channels, taps, window, normed, gain);
    to += TOGETHER * channels;
  }
  for (; row < run.rows; row++, to += channels) {
    convolve<1>(inputs + row * u_stride, u_stride, to, channels, taps, window, normed, gain);
  }

  if (!run.first) return;
#pragma unroll
  for (int p = 0; p < PAST; p++) {
    if (run.rows < run.total) load_channels(inputs + (run.total - PAST + p) * u_stride, window[p]);
    store_channels(kept + p * channels, window[p]);
  }
}
