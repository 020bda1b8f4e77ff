// Idea: the products run on the tensor cores; what becomes halves for them is scaled first, and the state stays fp32.
// Removes seven of every eight instructions that multiply, and all conversions of q and k to floats.
//
// The gated delta rule on chunks of 64 positions (formulas: within.cuh; S is the state before the chunk):
//     D = U - e^G W S,   O = e^G (Q S) + P D,   S <- e^(G_63) S + K^T (e^(G_63 - G) D),
//     P_ij = (q_i . k_j) e^(G_i - G_j) for i >= j.
// First gdn_within_chunks: u, w, p, notes for each chunk and head, grid (heads, chunks of this launch). Then
// gdn_prefill: grid (VALUE_DIM / 32, heads, S), a block has 32 columns of the state. w and p are halves, as are copies
// of S and D; p, S, D and e^(G_63 - G) D come with a power of two each, and the last two as two halves where keys
// repeat. Sums, u, gates and the state itself are fp32.
// qkv [T, q | k | v], q and k normalised, q scaled; b, a [T, heads], rows of any distance; state [slots, heads,
// KEY_DIM, VALUE_DIM], in place: of a sequence at position 0 it is not read. slots, starts, row_starts, chunk_starts:
// labkit/ops/state_batch.py; chunks first_chunk .. first_chunk + chunk_count - 1. out [T, heads, VALUE_DIM].
//   KEY_DIM, VALUE_DIM  64 or 128
#if !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "gdn_prefill is compiled with -D KEY_DIM and VALUE_DIM"
#endif

#include "gdn_prefill/scan.cuh"

constexpr int WITHIN_ROWS = 16;  // of k k^T, for the first four warps, or of q k^T, for the others
constexpr int HALF_WARPS = 4;

// Where keys repeat, the deltas of their rows are differences that cancel in sums over the chunk, and what rounding
// each of them loses does not: it adds up like the squares of what the rows find of one another. Of 64 rows with one
// key these are 2016 together, of random keys 2016 / KEY_DIM. From this many on, deltas go into products as two halves.
constexpr float MANY_SQUARES = 128.0f;

// A warp's rows of a product with k^T: all 64 columns.
using Product = float[WITHIN_ROWS / MMA_M][CHUNK / 32][8];

__device__ __forceinline__ void multiply_keys(Product& c, const uint4* rows, const uint4* keys, int first) {
  const int row = fragment_row(threadIdx.x % WARP), column = 8 * (threadIdx.x >> 2 & 3) + row;
#pragma unroll 4
  for (int p = 0; p < KEY_PIECES; p++) {
    uint4 x[2], y[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      x[n] = rows[piece_at<KEY_PIECES>(first + n * MMA_M + row, p)];
      y[n] = keys[piece_at<KEY_PIECES>(32 * n + column, p)];
    }
#pragma unroll
    for (int n = 0; n < 4; n++) multiply(c[n / 2][n % 2], x[n / 2], y[n % 2]);
  }
}

// From q k^T to P; returns the largest.
__device__ __forceinline__ float weigh(Product& c, const ChunkGates& gates, int first) {
  const int lane = threadIdx.x % WARP;
  float largest = 0.0f;
#pragma unroll
  for (int n = 0; n < 4; n++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const int i = first + n / 2 * MMA_M + accumulator_row(lane, e), j = n % 2 * 32 + accumulator_column(lane, e);
      float& x = c[n / 2][n % 2][e];
      x = j <= i ? x * gates.decay(i, j) : 0.0f;
      largest = fmaxf(largest, fabsf(x));
    }
  }
  return warp_max(largest);
}

// From k k^T to the two systems; returns the squares of what rows have left for later ones to find, added up.
__device__ __forceinline__ float put_all(float* systems, const ChunkGates& gates, const Product& c, int first) {
  const int lane = threadIdx.x % WARP;
  float squares = 0.0f;
#pragma unroll
  for (int n = 0; n < 4; n++) {
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const int i = first + n / 2 * MMA_M + accumulator_row(lane, e), j = n % 2 * 32 + accumulator_column(lane, e);
      const float left = put(systems, gates, i, j, c[n / 2][n % 2][e]);
      squares += left * left;
    }
  }
  return warp_sum(squares);
}

extern "C" __global__ void __launch_bounds__(WITHIN_THREADS, 2)
    gdn_within_chunks(const half* __restrict__ qkv, const half* __restrict__ b, long long b_row,
                      const half* __restrict__ a, long long a_row, const float* __restrict__ a_log,
                      const float* __restrict__ dt_bias, const int* __restrict__ starts,
                      const int* __restrict__ row_starts, const int* __restrict__ chunk_starts, int sequences,
                      int key_heads, int first_chunk, float* __restrict__ u, half* __restrict__ w,
                      half* __restrict__ p, float* __restrict__ notes) {
  __shared__ uint4 tiles[SHARED_PIECES];
  __shared__ ChunkGates gates;
  __shared__ float largest[HALF_WARPS], squares[HALF_WARPS];
  const int head = blockIdx.x, number = first_chunk + blockIdx.y, warp = threadIdx.x / WARP;
  const int sequence = sequence_of(number, chunk_starts, sequences);
  const Chunk chunk = Rows64(sequence, starts, row_starts).chunk(number - chunk_starts[sequence]);
  const Channels at(head, gridDim.x, key_heads);
  const long long place = static_cast<long long>(blockIdx.y) * gridDim.x + head;
  uint4 *keys = tiles, *queries = tiles + CHUNK * KEY_PIECES;
  load_tile(keys, qkv, at.k, at.width, chunk);
  load_tile(queries, qkv, at.q, at.width, chunk);
  if (warp == 0) gates.fill(Gates(b, b_row, a, a_row, a_log, dt_bias, head), chunk, notes + place * NOTES);
  __syncthreads();
  const bool of_keys = warp < HALF_WARPS;
  const int first = warp % HALF_WARPS * WITHIN_ROWS;
  Product c = {};
  multiply_keys(c, of_keys ? keys : queries, keys, first);
  if (!of_keys) largest[warp - HALF_WARPS] = weigh(c, gates, first);
  __syncthreads();  // the systems take the place of the tiles
  float* systems = reinterpret_cast<float*>(tiles);
  if (of_keys) {
    const float sum = put_all(systems, gates, c, first);
    if (threadIdx.x % WARP == 0) squares[warp] = sum;  // of NaN, lanes may have different ones
  } else {
    const Scale scale(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])));
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
      for (int e = 0; e < 8; e++) c[n / 2][n % 2][e] *= scale.up;
      store_product(c[n / 2][n % 2], p + place * CHUNK * CHUNK, first + n / 2 * MMA_M, n % 2 * 32, CHUNK, CHUNK);
    }
    if (first == 0 && threadIdx.x % WARP < 2) {
      notes[place * NOTES + SCALE_AT + threadIdx.x % WARP] = threadIdx.x % WARP ? scale.down : scale.up;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    notes[place * NOTES + PARTS_AT] = squares[0] + squares[1] + squares[2] + squares[3] < MANY_SQUARES ? 1.0f : 2.0f;
  }
  solve(systems, gates, qkv, at, chunk, u + place * CHUNK * VALUE_DIM, w + place * CHUNK * KEY_DIM);
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 2)
    gdn_prefill(const half* __restrict__ qkv, const float* __restrict__ u, const half* __restrict__ w,
                const half* __restrict__ p, const float* __restrict__ notes, float* __restrict__ state,
                const long long* __restrict__ slots, const int* __restrict__ starts,
                const int* __restrict__ row_starts, const int* __restrict__ chunk_starts, int key_heads,
                int first_chunk, int chunk_count, float* __restrict__ out) {
  __shared__ Shared shared;
  const int head = blockIdx.y, heads = gridDim.y, sequence = blockIdx.z;
  const Run run(sequence, chunk_starts, first_chunk, chunk_count);
  if (run.begin >= run.end) return;
  const Rows64 rows(sequence, starts, row_starts);
  const Channels at(head, heads, key_heads);
  const Lane lane;
  float* own = state + (slots[sequence] * heads + head) * KEY_DIM * VALUE_DIM;
  State s;
  load_state(s, own, run.fresh(starts[sequence]), lane);
  Fetched<KEY_PIECES> next_w, next_q;
  next_w.load(w + (static_cast<long long>(run.begin + run.shift) * heads + head) * CHUNK * KEY_DIM);
  next_q.load(qkv, at.q, at.width, rows.chunk(run.begin));
  for (int n = run.begin; n < run.end; n++) {
    const Chunk chunk = rows.chunk(n);
    const long long place = static_cast<long long>(n + run.shift) * heads + head;
    const float* own_notes = notes + place * NOTES;
    shared.largest[0][lane.warp] = warp_max(largest_of(s, 0.0f));
    __syncthreads();  // nobody reads operands of the chunk before any more
    const Scale of_state(over_warps(shared.largest[0]));
    store_state(shared.state(), s, of_state.up, lane);
    next_w.store(shared.w());
    next_q.store(shared.q());
    __syncthreads();

    Fetched<KEY_PIECES> k;
    Fetched<SCORE_PIECES> scores;
    k.load(qkv, at.k, at.width, chunk);
    scores.load(p + place * CHUNK * CHUNK);
    Rows d = {}, o = {};
    multiply_state(d, o, shared, lane);
    const float2 largest = finish_deltas(d, o, u + place * CHUNK * VALUE_DIM, own_notes, of_state.down, lane);
    shared.largest[1][lane.warp] = warp_max(largest.x);
    shared.largest[2][lane.warp] = warp_max(largest.y);
    __syncthreads();  // k, P and the deltas take the place of w and q
    const Scale of_deltas(over_warps(shared.largest[1])), of_tails(over_warps(shared.largest[2]));
    const int parts = static_cast<int>(own_notes[PARTS_AT]);
    for (int part = 0; part < parts; part++) {
      store_rows(shared.deltas(part), part, d, nullptr, of_deltas.up, lane);
      store_rows(shared.tails(part), part, d, own_notes + TAILS_AT, of_tails.up, lane);
    }
    k.store(shared.k());
    scores.store(shared.p());
    __syncthreads();

    const int next = min(n + 1, run.end - 1);  // without a branch, which would take registers
    next_w.load(w + (static_cast<long long>(next + run.shift) * heads + head) * CHUNK * KEY_DIM);
    next_q.load(qkv, at.q, at.width, rows.chunk(next));
    multiply_by(o, own_notes[SCALE_AT] * of_deltas.up);
    multiply_by(s, own_notes[DECAYS_AT + CHUNK - 1] * of_tails.up);
    for (int part = 0; part < parts; part++) multiply_deltas(o, s, shared, part, lane);
    multiply_by(s, of_tails.down);
    write_out(out + head * VALUE_DIM, o, own_notes[SCALE_AT + 1] * of_deltas.down, chunk, heads * VALUE_DIM, lane);
  }
  write_state(own, s, lane);
}
