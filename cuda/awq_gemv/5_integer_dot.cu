// Idea: x is split into bytes, and one instruction multiplies four of them by four nibbles and adds exactly.
// Removes a quarter of the multiplications, and the conversion of each weight.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), w = (q - z) s or q s + b, for up to ROWS rows of x.
// awq_gemv_silu_mul: the weight is [gate | up], and y = silu(gate x) (up x).
//
// Over 128 inputs x = unit n: unit is a power of two, n an integer of 23 bits and a sign, which the largest |x| fills;
// n = 65536 high + 256 middle + low, high a signed byte, the others unsigned ones. Exact: every |x| from 2^-12 of the
// largest on. A smaller one is rounded, by up to 2^-23 of the largest. Where enough x are near the largest, in every
// row (is_tame), n has 15 bits and a sign: middle and low, and a third of the multiplications less. Exact then: every
// |x| from 1/16 of the largest on. A smaller one is rounded, by up to 2^-15 of the largest: at least 64 of the 128 are
// off by no more than 2^-10 of themselves, the others by no more than 2^-10 of the smallest of these. (A result could
// show more only where nearly all of the 64 meet q = z.)
// The sums of products (dp4a) are exact integers. Rounded to fp32: such a sum of a group, times unit and scale; the
// sum of x of a group, times its offset; and what is added up of these. y is rounded once. An infinity or a NaN in x
// reaches every result of its row through the sum of x.
//
// All blocks of the launch have equal shares of the weight (Division): gridDim.x is at most the batches of all columns.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   ROWS        rows of x at most: 1, 2, 4 or 8
//   WARPS       of a block; they take turns along K
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(ROWS) || !defined(WARPS)
#error "awq_gemv is compiled with -D GROUP, SCALE_BIAS, ROWS and WARPS"
#endif

#include "awq_gemv/ahead.cuh"
#include "awq_gemv/bytes_of_x.cuh"
#include "awq_gemv/even_shares.cuh"

// Left alone, the compiler makes room for four blocks here, by spilling a register.
#if SCALE_BIAS && GROUP == 64 && ROWS == 2
#define BOUNDS __launch_bounds__(WARPS* WARP, 3)
#else
#define BOUNDS __launch_bounds__(WARPS* WARP)
#endif

// acc += q x for the eight inputs of a word, byte by byte of x; the last byte has the sign. x[..][..][at], and the
// next, are the word's.
template <int USED>
__device__ __forceinline__ void multiply(unsigned word, const unsigned (&x)[ROWS][USED][X_WORDS], int at,
                                         int (&acc)[ROWS][USED]) {
#pragma unroll
  for (int j = at; j < at + 2; j++) {
    const unsigned nibbles = (j % 2 ? word >> 4 : word) & 0x0f0f0f0fu;
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
#pragma unroll
      for (int byte = 0; byte < USED - 1; byte++) {
        acc[m][byte] = __dp4a(x[m][byte][j], nibbles, static_cast<unsigned>(acc[m][byte]));
      }
      acc[m][USED - 1] = __dp4a(static_cast<int>(x[m][USED - 1][j]), static_cast<int>(nibbles), acc[m][USED - 1]);
    }
  }
}

// What the sums over bytes are together.
__device__ __forceinline__ float joined(const int (&acc)[2]) {
  return static_cast<float>(256 * acc[MIDDLE] + acc[LOW]);
}
__device__ __forceinline__ float joined(const int (&acc)[3]) {
  return fmaf(65536.0f, static_cast<float>(acc[HIGH]), static_cast<float>(256 * acc[MIDDLE] + acc[LOW]));
}

// sums += one batch, group by group, with USED bytes of x. What was multiplied makes room for the batch at ``next``.
template <int USED>
__device__ __forceinline__ void multiply_batch(Ahead& ahead, const SharedX& shared, float (&sums)[PARTS][ROWS],
                                               const Place& next, int end, int groups) {
  const int sharer = threadIdx.x % WARP / LANES;
#pragma unroll
  for (int run = 0; run < PAIRS; run++) {
    int acc[PARTS][ROWS][USED] = {};
#pragma unroll
    for (int i = run * RUN; i < (run + 1) * RUN; i++) {
      const SharedChunk& chunk = shared.chunks[i * SHARERS + sharer];
#pragma unroll
      for (int j = 0; j < CHUNK_WORDS; j += X_WORDS) {
        unsigned x[ROWS][USED][X_WORDS];
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
#pragma unroll
          for (int byte = 0; byte < USED; byte++) {
            *reinterpret_cast<Words*>(x[m][byte]) = *reinterpret_cast<const Words*>(&chunk.x[m][byte][j]);
          }
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
          for (int at = 0; at < X_WORDS; at += 2) {
            multiply<USED>(reinterpret_cast<const unsigned*>(&ahead.chunks[p][i])[(j + at) / 2], x, at, acc[p]);
          }
        }
      }
      load_chunk(next, i, next.batch < end && inside(next, i, groups), ahead);
    }
    const float* of_group = shared.sums[(run * RUN * SHARERS + sharer) / GROUP_CHUNKS];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const float2 pair = __half22float2(ahead.pairs[p][run]);
      const float offset = SCALE_BIAS ? pair.y : -pair.x * pair.y;
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        sums[p][m] = fmaf(pair.x, shared.units[m] * joined(acc[p][m]), fmaf(offset, of_group[m], sums[p][m]));
      }
    }
    load_pair(next, run, next.batch < end && inside(next, run * RUN, groups), ahead);
  }
}

// The third byte is of use only if a row is not tame.
__device__ __forceinline__ void multiply_batch(Ahead& ahead, const SharedX& shared, float (&sums)[PARTS][ROWS],
                                               const Place& next, int end, int groups) {
  int wide = 0;
#pragma unroll
  for (int m = 0; m < ROWS; m++) wide |= shared.wide[m];
  if (wide) {
    multiply_batch<BYTES>(ahead, shared, sums, next, end, groups);
  } else {
    multiply_batch<BYTES - 1>(ahead, shared, sums, next, end, groups);
  }
}

// The warp's sums to shared memory, after the lanes with the same outputs have added theirs; they begin anew.
__device__ __forceinline__ void leave(float (&sums)[PARTS][ROWS], float* to) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
#pragma unroll
      for (int distance = LANES; distance < WARP; distance *= 2) {
        sums[p][m] += __shfl_xor_sync(ALL_LANES, sums[p][m], distance);
      }
      if (lane < LANES) to[(p * ROWS + m) * LANES + lane] = sums[p][m];
      sums[p][m] = 0.0f;
    }
  }
}

// The sums of a column to y.
template <bool SILU_MUL>
__device__ __forceinline__ void store(const float (&total)[COUNT], int column, int all_parts,
                                      const Result& result) {
  for (int i = threadIdx.x; i < COUNT; i += WARPS * WARP) {
    const int p = i / (ROWS * LANES), m = i / LANES % ROWS;
    const int part = part_of<SILU_MUL>(column, p, all_parts);
    const int n = part / TILE_PARTS * TILE_N + lane_column(part % TILE_PARTS * LANES + i % LANES);
    if (SILU_MUL && p % 2) continue;
    result.store(m, n, SILU_MUL ? silu_times(total[i], total[i + ROWS * LANES]) : total[i]);
  }
}

template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, const char* weight, const Result& result, float* partials,
                                     int* arrivals, int rows, int outputs, int groups) {
  __shared__ SharedX shared_x[WARPS];
  __shared__ float left[WARPS][COUNT];
  const int warp = threadIdx.x / WARP;
  const int all_parts = (outputs + TILE_N - 1) / TILE_N * TILE_PARTS;
  const unsigned batches = (groups * GROUP + BATCH_K - 1) / BATCH_K;
  const unsigned columns = (all_parts + PARTS - 1) / PARTS;
  const Division division{batches, columns * batches};
  unsigned begin = division.begin(blockIdx.x);
  const unsigned end = division.begin(blockIdx.x + 1);

  float sums[PARTS][ROWS] = {};
  Ahead ahead = {};  // what lies beyond K meets an x of 0, and must be finite
  while (begin < end) {
    const unsigned column = begin / batches, first = begin % batches;
    const int last = min(batches, first + end - begin);
    Place at = place<SILU_MUL>(weight, x, column, first + warp, all_parts, groups);
    load(at, last, rows, groups, ahead);
    while (at.batch < last) {
      share_x(ahead.x, shared_x[warp]);
      advance(at);
      load_x(at, last, rows, groups, ahead);
      multiply_batch(ahead, shared_x[warp], sums, at, last, groups);
    }
    __syncthreads();  // the sums of the column before are stored
    leave(sums, left[warp]);
    if (add_column(left, division, column, partials, arrivals)) store<SILU_MUL>(left[0], column, all_parts, result);
    begin += last - first;
  }
}

extern "C" __global__ void BOUNDS
    awq_gemv(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
             half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows, int outputs,
             int groups) {
  gemv<false>(x, reinterpret_cast<const char*>(weight), {residual, y, rows, outputs}, partials, arrivals, rows,
              outputs, groups);
}

// outputs: rows of the weight, twice the width of y.
extern "C" __global__ void BOUNDS
    awq_gemv_silu_mul(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
                      half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows,
                      int outputs, int groups) {
  gemv<true>(x, reinterpret_cast<const char*>(weight), {residual, y, rows, outputs / 2}, partials, arrivals, rows,
              outputs, groups);
}
