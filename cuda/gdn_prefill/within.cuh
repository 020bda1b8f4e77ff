// What a chunk's outputs and its effect on the state need besides the state: gates, and the triangular systems.
//
// With G_i the sum of g up to row i of a chunk, the deltas d_i of its rows solve
//     d_i + sum over j < i of beta_i (k_i . k_j) e^(G_i - G_j) d_j = beta_i (v_i - e^(G_i) S^T k_i)
// so d = U - e^G W S, where U and W solve two systems without S:
//     (I + A) U = beta V, A_ij = beta_i (k_i . k_j) e^(G_i - G_j)      (I + B) W = beta K, B_ij = beta_i (k_i . k_j)
// for i > j. (Usually W has its e^(G_i) inside. Taken out, the system loses its decays, and no row of W is too small
// for a half, however fast the state decays.) Every exponent is <= 0.
#pragma once

#include "common/vector.cuh"
#include "gdn_prefill/head.cuh"

constexpr int WITHIN_THREADS = 256;
constexpr int KEY_PIECES = KEY_DIM / 8;  // of 16 bytes in a row of q or k
static_assert(KEY_DIM + VALUE_DIM <= WITHIN_THREADS, "A thread has a column of U or of W");

// What a chunk leaves for the scan, in floats: e^(G_i), then e^(G_63 - G_i), of each row, then the factor of the
// scores and its inverse, and as how many halves the deltas go into products.
constexpr int DECAYS_AT = 0, TAILS_AT = CHUNK, SCALE_AT = 2 * CHUNK, PARTS_AT = SCALE_AT + 2, NOTES = PARTS_AT + 1;

// Where piece p of a row of a tile lies. Any eight lanes that read 16 bytes each together ask for the same piece of
// rows {0, 1, 2, 3, 8, 9, 10, 11}, of those 4 or 16 further on, or for eight pieces of a row: no bank twice.
template <int PIECES>
__device__ __forceinline__ int piece_at(int row, int piece) {
  return row * PIECES + (piece ^ ((row & 3) | (row >> 1 & 4)));
}

// Gates of a chunk's rows; those of rows that are not the sequence's leave everything as it is.
struct ChunkGates {
  double total[CHUNK];  // G: in fp32 the differences of large sums would lose their last digits
  float strength[CHUNK];

  __device__ __forceinline__ float decay(int i, int j) const { return expf(static_cast<float>(total[i] - total[j])); }

  // By the first warp: a lane has two rows.
  __device__ __forceinline__ void fill(const Gates& gates, const Chunk& chunk, float* notes) {
    const int lane = threadIdx.x, row = 2 * lane;
    double g[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool there = chunk.has(row + i);
      g[i] = there ? gates.log_decay(chunk.at(row + i)) : 0.0f;
      strength[row + i] = there ? gates.strength(chunk.at(row + i)) : 0.0f;
    }
    double sum = g[0] + g[1];
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const double below = __shfl_up_sync(ALL_LANES, sum, distance);
      if (lane >= distance) sum += below;
    }
    const double last = __shfl_sync(ALL_LANES, sum, WARP - 1);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const double own = i == 0 ? sum - g[1] : sum;
      total[row + i] = own;
      notes[DECAYS_AT + row + i] = expf(static_cast<float>(own));
      notes[TAILS_AT + row + i] = expf(static_cast<float>(last - own));
    }
  }
};

// The chunk's 64 rows of q or k, from their channel on, as a tile; zeros for rows that are not the sequence's.
__device__ __forceinline__ void load_tile(uint4* tile, const half* qkv, int channel, int width, const Chunk& chunk) {
#pragma unroll
  for (int i = threadIdx.x; i < CHUNK * KEY_PIECES; i += WITHIN_THREADS) {
    const int row = i / KEY_PIECES, piece = i % KEY_PIECES;
    uint4 value = {};
    if (chunk.has(row)) value = reinterpret_cast<const uint4*>(qkv + chunk.at(row) * width + channel)[piece];
    tile[piece_at<KEY_PIECES>(row, piece)] = value;
  }
}

// A, then B, where the tiles were. Rows are read four elements at a time, so each is filled up with zeros to a multiple
// of four.
constexpr int PITCH = CHUNK + 4, B_AT = CHUNK * PITCH, SYSTEMS = 2 * CHUNK * PITCH / 4;  // SYSTEMS: in 16 bytes
constexpr int SHARED_PIECES = 2 * CHUNK * KEY_PIECES > SYSTEMS ? 2 * CHUNK * KEY_PIECES : SYSTEMS;
__device__ constexpr int up_to_four(int i) { return (i + 3) / 4 * 4; }

// product: k_i . k_j. Returns how much of row j is left for the key of row i to find.
__device__ __forceinline__ float put(float* systems, const ChunkGates& gates, int i, int j, float product) {
  if (j >= up_to_four(i)) return 0.0f;
  const float left = j < i ? product * gates.decay(i, j) : 0.0f;
  systems[i * PITCH + j] = gates.strength[i] * left;
  systems[i * PITCH + j + B_AT] = j < i ? gates.strength[i] * product : 0.0f;
  return left;
}

// x: a column of V or K, becomes one of U or W.
__device__ __forceinline__ void substitute(float (&x)[CHUNK], const float* system) {
#pragma unroll
  for (int i = 1; i < CHUNK; i++) {
    asm volatile("" ::: "memory");  // no loads for later rows: registers are for x
#pragma unroll
    for (int j = 0; j < i; j += 4) {  // (through an array of four the compiler would take half a minute)
      const float4 factors = *reinterpret_cast<const float4*>(system + i * PITCH + j);
      x[i] -= factors.x * x[j];
      if (j + 1 < i) x[i] -= factors.y * x[j + 1];
      if (j + 2 < i) x[i] -= factors.z * x[j + 2];
      if (j + 3 < i) x[i] -= factors.w * x[j + 3];
    }
  }
}

__device__ __forceinline__ void store_one(float* to, float x) { *to = x; }
__device__ __forceinline__ void store_one(half* to, float x) { *to = __float2half_rn(x); }

// A thread for a column: first those of U [CHUNK, VALUE_DIM], then those of W [CHUNK, KEY_DIM].
template <typename T>
__device__ __forceinline__ void solve(const float* systems, const ChunkGates& gates, const half* qkv,
                                      const Channels& at, const Chunk& chunk, float* u, T* w) {
  const bool of_v = threadIdx.x < VALUE_DIM;
  const int column = of_v ? threadIdx.x : threadIdx.x - VALUE_DIM;
  if (column >= KEY_DIM && !of_v) return;
  const half* from = qkv + chunk.at(chunk.low) * at.width + (of_v ? at.v : at.k) + column;
  float x[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; i++) {
    x[i] = chunk.has(i) ? gates.strength[i] * __half2float(*from) : 0.0f;
    if (chunk.has(i) && chunk.has(i + 1)) from += at.width;
  }
  substitute(x, systems + (of_v ? 0 : B_AT));
  if (of_v) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) u[i * VALUE_DIM + column] = x[i];
  } else {
#pragma unroll
    for (int i = 0; i < CHUNK; i++) store_one(w + i * KEY_DIM + column, x[i]);
  }
}
