// Idea: 64 rows at once: all chunks solve their triangular systems side by side, then a scan carries the state along.
// Removes 63 of every 64 steps that wait for the one before: what is left between chunks are matrix products.
//
// The gated delta rule on chunks of 64 positions (formulas: within.cuh; S is the state before the chunk):
//     D = U - e^G W S,   O = e^G (Q S) + P D,   S <- e^(G_63) S + K^T (e^(G_63 - G) D),
//     P_ij = (q_i . k_j) e^(G_i - G_j) for i >= j.
// First gdn_within_chunks: u, w, p, notes for each chunk and head, grid (heads, chunks of this launch). Then
// gdn_prefill: grid (VALUE_DIM / 32, heads, S), a block has 32 columns of the state. All in fp32.
// qkv [T, q | k | v], q and k normalised, q scaled; b, a [T, heads], rows of any distance; state [slots, heads,
// KEY_DIM, VALUE_DIM], in place: of a sequence at position 0 it is not read. slots, starts, row_starts, chunk_starts:
// labkit/ops/state_batch.py; chunks first_chunk .. first_chunk + chunk_count - 1. out [T, heads, VALUE_DIM].
//   KEY_DIM, VALUE_DIM  64 or 128
#if !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "gdn_prefill is compiled with -D KEY_DIM and VALUE_DIM"
#endif

#include "gdn_prefill/within.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int SLICE = 32;                     // columns of the state that a block has: a lane has one
constexpr int ROWS = CHUNK / WARPS;           // of the chunk that a warp has
constexpr int STATE_ROWS = KEY_DIM / WARPS;   // of the state that a warp has
constexpr int SPREAD = 16, PART = CHUNK / SPREAD;  // a thread has every 16th row and column of the products

__device__ __forceinline__ void as_floats(const uint4& piece, float (&x)[8]) {
  load(reinterpret_cast<const half*>(&piece), x);
}

// Lanes' columns are those rows of the tile that eight of them can read together.
__device__ __forceinline__ int own_column() {
  const int n = threadIdx.x % SPREAD;
  return (n & 3) | (n & 4) << 1 | (n & 8) >> 1;
}

// k k^T and q k^T, for rows and columns that are 16 apart.
__device__ __forceinline__ void multiply(float (&kk)[PART][PART], float (&qk)[PART][PART], const uint4* keys,
                                         const uint4* queries) {
  const int row = threadIdx.x / SPREAD, column = own_column();
#pragma unroll 1
  for (int piece = 0; piece < KEY_PIECES; piece++) {
    float columns[PART][8];
#pragma unroll
    for (int c = 0; c < PART; c++) as_floats(keys[piece_at<KEY_PIECES>(column + c * SPREAD, piece)], columns[c]);
#pragma unroll
    for (int r = 0; r < PART; r++) {
      float k[8], q[8];
      as_floats(keys[piece_at<KEY_PIECES>(row + r * SPREAD, piece)], k);
      as_floats(queries[piece_at<KEY_PIECES>(row + r * SPREAD, piece)], q);
#pragma unroll
      for (int c = 0; c < PART; c++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          kk[r][c] += k[i] * columns[c][i];
          qk[r][c] += q[i] * columns[c][i];
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_within_chunks(const half* __restrict__ qkv, const half* __restrict__ b, long long b_row,
                      const half* __restrict__ a, long long a_row, const float* __restrict__ a_log,
                      const float* __restrict__ dt_bias, const int* __restrict__ starts,
                      const int* __restrict__ row_starts, const int* __restrict__ chunk_starts, int sequences,
                      int key_heads, int first_chunk, float* __restrict__ u, float* __restrict__ w,
                      float* __restrict__ p, float* __restrict__ notes) {
  __shared__ uint4 tiles[SHARED_PIECES];
  __shared__ ChunkGates gates;
  const int head = blockIdx.x, number = first_chunk + blockIdx.y;
  const int sequence = sequence_of(number, chunk_starts, sequences);
  const Chunk chunk = Rows64(sequence, starts, row_starts).chunk(number - chunk_starts[sequence]);
  const Channels at(head, gridDim.x, key_heads);
  const long long place = static_cast<long long>(blockIdx.y) * gridDim.x + head;
  uint4 *keys = tiles, *queries = tiles + CHUNK * KEY_PIECES;
  load_tile(keys, qkv, at.k, at.width, chunk);
  load_tile(queries, qkv, at.q, at.width, chunk);
  if (threadIdx.x < WARP) gates.fill(Gates(b, b_row, a, a_row, a_log, dt_bias, head), chunk, notes + place * NOTES);
  if (threadIdx.x < NOTES - SCALE_AT) notes[place * NOTES + SCALE_AT + threadIdx.x] = 1.0f;  // all is as it is
  __syncthreads();
  float kk[PART][PART] = {}, qk[PART][PART] = {};
  multiply(kk, qk, keys, queries);
  __syncthreads();  // the systems take the place of the tiles
  float* systems = reinterpret_cast<float*>(tiles);
  float* scores = p + place * CHUNK * CHUNK;
#pragma unroll
  for (int r = 0; r < PART; r++) {
#pragma unroll
    for (int c = 0; c < PART; c++) {
      const int i = threadIdx.x / SPREAD + r * SPREAD, j = own_column() + c * SPREAD;
      put(systems, gates, i, j, kk[r][c]);
      scores[i * CHUNK + j] = j <= i ? qk[r][c] * gates.decay(i, j) : 0.0f;
    }
  }
  __syncthreads();
  solve(systems, gates, qkv, at, chunk, u + place * CHUNK * VALUE_DIM, w + place * CHUNK * KEY_DIM);
}

// What the scan reads of a chunk.
struct Operands {
  const float *u, *w, *p, *notes;

  __device__ __forceinline__ Operands(const float* all_u, const float* all_w, const float* all_p,
                                      const float* all_notes, long long place)
      : u(all_u + place * CHUNK * VALUE_DIM), w(all_w + place * CHUNK * KEY_DIM), p(all_p + place * CHUNK * CHUNK),
        notes(all_notes + place * NOTES) {}
};

// Of the rows of a warp: w S and q S. Past the sequence's rows its last or first one is given again.
__device__ __forceinline__ void multiply_state(float (&ws)[ROWS], float (&qs)[ROWS],
                                               const float (&state)[KEY_DIM][SLICE], const float* w, const half* q,
                                               int width, const Chunk& chunk) {
  const int first = threadIdx.x / WARP * ROWS, lane = threadIdx.x % WARP;
#pragma unroll 1
  for (int i = 0; i < KEY_DIM; i += 4) {
    float s[4];
#pragma unroll
    for (int n = 0; n < 4; n++) s[n] = state[i + n][lane];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = max(chunk.low, min(chunk.high - 1, first + r));
      float x[4], y[4];
      load(w + (first + r) * KEY_DIM + i, x);
      load(q + chunk.at(row) * width + i, y);
#pragma unroll
      for (int n = 0; n < 4; n++) ws[r] += x[n] * s[n], qs[r] += y[n] * s[n];
    }
  }
}

// o += P D
__device__ __forceinline__ void add_scores(float (&o)[ROWS], const float* p, const float (&deltas)[CHUNK][SLICE]) {
  const int first = threadIdx.x / WARP * ROWS, lane = threadIdx.x % WARP;
#pragma unroll 1
  for (int j = 0; j < first + ROWS; j += 4) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float x[4];
      load(p + (first + r) * CHUNK + j, x);
#pragma unroll
      for (int n = 0; n < 4; n++) o[r] += x[n] * deltas[j + n][lane];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_prefill(const half* __restrict__ qkv, const float* __restrict__ u, const float* __restrict__ w,
                const float* __restrict__ p, const float* __restrict__ notes, float* __restrict__ state,
                const long long* __restrict__ slots, const int* __restrict__ starts,
                const int* __restrict__ row_starts, const int* __restrict__ chunk_starts, int key_heads,
                int first_chunk, int chunk_count, float* __restrict__ out) {
  __shared__ float copy[KEY_DIM][SLICE], deltas[CHUNK][SLICE];
  const int head = blockIdx.y, heads = gridDim.y, sequence = blockIdx.z;
  const Run run(sequence, chunk_starts, first_chunk, chunk_count);
  if (run.begin >= run.end) return;
  const Rows64 rows(sequence, starts, row_starts);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * SLICE + lane;
  const Channels at(head, heads, key_heads);
  const long long own = (slots[sequence] * heads + head) * KEY_DIM * VALUE_DIM + warp * STATE_ROWS * VALUE_DIM + column;
  const bool fresh = run.fresh(starts[sequence]);
  float s[STATE_ROWS];
#pragma unroll
  for (int i = 0; i < STATE_ROWS; i++) {
    s[i] = fresh ? 0.0f : state[own + i * VALUE_DIM];
    copy[warp * STATE_ROWS + i][lane] = s[i];
  }
  __syncthreads();
  for (int n = run.begin; n < run.end; n++) {
    const Chunk chunk = rows.chunk(n);
    const Operands from(u, w, p, notes, static_cast<long long>(n + run.shift) * heads + head);
    float o[ROWS] = {}, ws[ROWS] = {};
    multiply_state(ws, o, copy, from.w, qkv + at.q, at.width, chunk);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = warp * ROWS + r;
      const float decay = from.notes[DECAYS_AT + row];
      deltas[row][lane] = from.u[row * VALUE_DIM + column] - decay * ws[r];
      o[r] *= decay;
    }
    __syncthreads();
    add_scores(o, from.p, deltas);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = warp * ROWS + r;
      if (chunk.has(row)) out[(chunk.at(row) * heads + head) * VALUE_DIM + column] = o[r];
    }
    const float whole = from.notes[DECAYS_AT + CHUNK - 1];
#pragma unroll
    for (int i = 0; i < STATE_ROWS; i++) s[i] *= whole;
#pragma unroll 2
    for (int row = chunk.low; row < chunk.high; row++) {
      float k[STATE_ROWS];
      load<8>(qkv + chunk.at(row) * at.width + at.k + warp * STATE_ROWS, reinterpret_cast<float(&)[8]>(k));
      if (STATE_ROWS > 8) {
        load<8>(qkv + chunk.at(row) * at.width + at.k + warp * STATE_ROWS + 8,
                reinterpret_cast<float(&)[8]>(k[STATE_ROWS - 8]));
      }
      const float d = deltas[row][lane] * from.notes[TAILS_AT + row];
#pragma unroll
      for (int i = 0; i < STATE_ROWS; i++) s[i] += k[i] * d;
    }
#pragma unroll
    for (int i = 0; i < STATE_ROWS; i++) copy[warp * STATE_ROWS + i][lane] = s[i];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < STATE_ROWS; i++) state[own + i * VALUE_DIM] = s[i];
}
