// Idea: x is split into bytes, and one instruction multiplies four of them by four nibbles and adds exactly.
// Removes a quarter of the multiplications, and the conversion of each weight.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]), w = (q - z) s or q s + b, for up to ROWS rows of x.
// awq_gemv_silu_mul: the weight is [gate | up], and y = silu(gate x) (up x).
//
// Over 128 inputs, x = unit (65536 high + 256 middle + low) with unit a power of two, high a signed byte, the others
// unsigned ones: fixed point with 23 bits and a sign, which the largest |x| fills. Numbers down to 2^-12 of it keep all
// their bits, smaller ones are rounded to a multiple of unit, whether the largest counts in a result or meets q = z.
// Integer sums (dp4a) are exact; group by group they become fp32. An infinity or a NaN in x reaches every result of its
// row through the sum of x.
//   GROUP       inputs that share a scale: 32, 64 or 128
//   SCALE_BIAS  1: a group has (scale, bias); 0: (scale, zero)
//   ROWS        rows of x at most: 1, 2, 4 or 8
//   WARPS       of a block; they take turns along K
#if !defined(GROUP) || !defined(SCALE_BIAS) || !defined(ROWS) || !defined(WARPS)
#error "awq_gemv is compiled with -D GROUP, SCALE_BIAS, ROWS and WARPS"
#endif

#include "awq_gemv/result.cuh"
#include "common/vector.cuh"

// A warp has PARTS times LANES outputs: an x that was read serves all parts, and what it cost to split x, all outputs.
// Lanes beyond LANES have the same outputs and other inputs. Measured best among 8, 16, 32 lanes and 1, 2, 3, 4 parts.
constexpr int LANES = ROWS == 1 ? 16 : 32, PARTS = 2;
constexpr int BATCH_K = 128;                        // inputs that a warp takes at a time
constexpr int BATCH_CHUNKS = BATCH_K / CHUNK_K;
constexpr int SHARERS = WARP / LANES;               // lanes with the same outputs
constexpr int DEPTH = BATCH_CHUNKS / SHARERS;       // chunks of a lane in a batch
constexpr int GROUP_CHUNKS = GROUP / CHUNK_K;
constexpr int RUN = GROUP_CHUNKS > SHARERS ? GROUP_CHUNKS / SHARERS : 1;  // chunks of a lane in one group
constexpr int PAIRS = DEPTH / RUN;
constexpr int GROUP_BYTES = sizeof(PackedGroup<GROUP>);
constexpr int BATCH_BYTES = BATCH_K / GROUP * GROUP_BYTES;
constexpr int CHUNK_BYTES = TILE_N * sizeof(uint4);
constexpr int TILE_PARTS = TILE_N / LANES;
constexpr int COUNT = PARTS * ROWS * LANES;         // sums of a warp

// x of a batch in shared memory. The eight inputs of a word of weights are two words here, as masks leave them there:
// inputs 0 4 1 5 and 2 6 3 7. Lanes of a warp read up to two chunks at a time, from different banks.
enum Byte { LOW, MIDDLE, HIGH, BYTES };
constexpr int CHUNK_WORDS = CHUNK_K / 4;
constexpr int X_WORDS = ROWS == 8 ? 2 : 4;          // that one load takes; with eight rows, registers are short
using Words = typename Moved<4 * X_WORDS>::type;
struct __align__(16) SharedChunk {  // which leaves no two of them a multiple of 32 words apart
  unsigned x[ROWS][BYTES][CHUNK_WORDS];
  float sums[ROWS];                                 // of its x
};
struct SharedX {
  SharedChunk chunks[BATCH_CHUNKS];
  float units[ROWS];
};

// What a lane has under way: its weights and its share of x for the next batch.
struct Ahead {
  half2 pairs[PARTS][PAIRS];
  uint4 chunks[PARTS][DEPTH];
  half2 x[ROWS][2];                                 // inputs 0 1 and 4 5 of eight, or 2 3 and 6 7
};

// The first of a lane's output parts in a column, in parts of the whole matrix; PARTS that follow are beside it or, for
// [gate | up], every other one lies half the matrix further.
template <bool SILU_MUL>
__device__ __forceinline__ int part_of(int p, int all_parts) {
  const int column = blockIdx.x;
  return SILU_MUL ? column * (PARTS / 2) + p / 2 + p % 2 * (all_parts / 2) : column * PARTS + p;
}

// Where a lane reads: the chunks of its parts, and from there back to the pairs; and its inputs of x.
struct Place {
  const char* chunks[PARTS];
  int to_pairs[PARTS];
  const half* x;
  int batch;
};

template <bool SILU_MUL>
__device__ __forceinline__ Place place(const char* weight, const half* x, int batch, int all_parts, int groups) {
  const int lane = threadIdx.x % WARP, sharer = lane / LANES;
  Place at;
#pragma unroll
  for (int p = 0; p < PARTS; p++) {
    const int part = min(part_of<SILU_MUL>(p, all_parts), all_parts - 1);
    const int in_tile = part % TILE_PARTS * LANES + lane % LANES;
    const int group = batch * (BATCH_K / GROUP) + sharer / GROUP_CHUNKS;
    const int chunk_offset = WARP * sizeof(half2) + sharer % GROUP_CHUNKS * CHUNK_BYTES + in_tile * sizeof(uint4);
    at.chunks[p] = weight + (static_cast<long long>(part / TILE_PARTS) * groups + group) * GROUP_BYTES + chunk_offset;
    at.to_pairs[p] = static_cast<int>(in_tile * sizeof(half2)) - chunk_offset;
  }
  at.x = x + batch * BATCH_K + lane / 2 * 8 + lane % 2 * 2;
  at.batch = batch;
  return at;
}

__device__ __forceinline__ void advance(Place& at) {
#pragma unroll
  for (int p = 0; p < PARTS; p++) at.chunks[p] += WARPS * BATCH_BYTES;
  at.x += WARPS * BATCH_K;
  at.batch += WARPS;
}

// Everything that a lane needs of a batch; nothing at or beyond batch ``end``. Only a last batch can reach beyond K,
// and only where groups are smaller than batches.
__device__ __forceinline__ void load(const Place& at, int end, int rows, int groups, Ahead& ahead) {
  if (at.batch >= end) return;
  const int lane = threadIdx.x % WARP, inputs = groups * GROUP;
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    const int first = i * SHARERS, offset = first / GROUP_CHUNKS * GROUP_BYTES;
    const bool inside = GROUP == BATCH_K || at.batch * BATCH_CHUNKS + first + lane / LANES < groups * GROUP_CHUNKS;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      if (i % RUN == 0) {
        const half2* from = reinterpret_cast<const half2*>(at.chunks[p] + at.to_pairs[p] + offset);
        ahead.pairs[p][i / RUN] = inside ? __ldcs(from) : half2{};
      }
      const uint4* from = reinterpret_cast<const uint4*>(at.chunks[p] + offset + first % GROUP_CHUNKS * CHUNK_BYTES);
      ahead.chunks[p][i] = inside ? __ldcs(from) : uint4{};
    }
  }
  const bool inside = GROUP == BATCH_K || at.batch * BATCH_K + lane * 4 < inputs;
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const half2* from = reinterpret_cast<const half2*>(at.x + m * inputs) + 2 * i;
      ahead.x[m][i] = inside && m < rows ? __ldg(from) : half2{};
    }
  }
}

// The power of two that makes a batch's largest |x| fill 23 bits; subnormal and zero rows get the smallest half's.
__device__ __forceinline__ float unit_of(float largest) {
  constexpr float SMALLEST = 1.0f / (1 << 24);
  const unsigned exponent = __float_as_uint(fmaxf(largest, SMALLEST)) >> 23;
  return __uint_as_float((exponent - 22) << 23);
}

// The warp's x from registers to shared memory, with the sum over each chunk, which eight lanes hold.
__device__ __forceinline__ void share_x(const half2 (&x)[ROWS][2], SharedX& shared) {
  const int lane = threadIdx.x % WARP;
  SharedChunk& chunk = shared.chunks[lane / 8];
  __syncwarp();  // all lanes are done with the x before
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    const float2 front = __half22float2(x[m][0]), back = __half22float2(x[m][1]);
    float sum = front.x + front.y + back.x + back.y;
    float largest = fmaxf(fmaxf(fabsf(front.x), fabsf(front.y)), fmaxf(fabsf(back.x), fabsf(back.y)));
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    sum += __shfl_xor_sync(ALL_LANES, sum, 4);
    largest = warp_max(largest);
    const float unit = unit_of(largest);
    const float scale = __uint_as_float((254u << 23) - __float_as_uint(unit));  // 1 / unit
    const int a = __float2int_rn(front.x * scale), b = __float2int_rn(back.x * scale);
    const int c = __float2int_rn(front.y * scale), d = __float2int_rn(back.y * scale);
    const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);  // a0 b0 a1 b1, c0 d0 c1 d1
    chunk.x[m][LOW][lane % 8] = __byte_perm(ab, cd, 0x5410);
    chunk.x[m][MIDDLE][lane % 8] = __byte_perm(ab, cd, 0x7632);
    chunk.x[m][HIGH][lane % 8] = __byte_perm(__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062), 0x5410);
    if (lane % 8 == 0) chunk.sums[m] = sum;
    if (lane == 0) shared.units[m] = unit;
  }
  __syncwarp();
}

// acc += q x for the eight inputs of a word, byte by byte of x. x[..][..][at], and the next, are the word's.
__device__ __forceinline__ void multiply(unsigned word, const unsigned (&x)[ROWS][BYTES][X_WORDS], int at,
                                         int (&acc)[ROWS][BYTES]) {
#pragma unroll
  for (int j = at; j < at + 2; j++) {
    const unsigned nibbles = (j % 2 ? word >> 4 : word) & 0x0f0f0f0fu;
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      acc[m][LOW] = __dp4a(x[m][LOW][j], nibbles, static_cast<unsigned>(acc[m][LOW]));
      acc[m][MIDDLE] = __dp4a(x[m][MIDDLE][j], nibbles, static_cast<unsigned>(acc[m][MIDDLE]));
      acc[m][HIGH] = __dp4a(static_cast<int>(x[m][HIGH][j]), static_cast<int>(nibbles), acc[m][HIGH]);
    }
  }
}

// sums += one batch, group by group.
__device__ __forceinline__ void multiply_batch(const Ahead& ahead, const SharedX& shared, float (&sums)[PARTS][ROWS]) {
  const int sharer = threadIdx.x % WARP / LANES;
#pragma unroll
  for (int run = 0; run < PAIRS; run++) {
    int acc[PARTS][ROWS][BYTES] = {};
    float sum_x[ROWS] = {};
#pragma unroll
    for (int i = run * RUN; i < (run + 1) * RUN; i++) {
      const SharedChunk& chunk = shared.chunks[i * SHARERS + sharer];
#pragma unroll
      for (int m = 0; m < ROWS; m++) sum_x[m] += chunk.sums[m];
#pragma unroll
      for (int j = 0; j < CHUNK_WORDS; j += X_WORDS) {
        unsigned x[ROWS][BYTES][X_WORDS];
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
#pragma unroll
          for (int byte = 0; byte < BYTES; byte++) {
            *reinterpret_cast<Words*>(x[m][byte]) = *reinterpret_cast<const Words*>(&chunk.x[m][byte][j]);
          }
        }
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
          for (int at = 0; at < X_WORDS; at += 2) {
            multiply(reinterpret_cast<const unsigned*>(&ahead.chunks[p][i])[(j + at) / 2], x, at, acc[p]);
          }
        }
      }
    }
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const float2 pair = __half22float2(ahead.pairs[p][run]);
      const float offset = SCALE_BIAS ? pair.y : -pair.x * pair.y;
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        const float product = fmaf(65536.0f, static_cast<float>(acc[p][m][HIGH]),
                                   static_cast<float>(256 * acc[p][m][MIDDLE] + acc[p][m][LOW]));
        sums[p][m] = fmaf(pair.x * shared.units[m], product, fmaf(offset, sum_x[m], sums[p][m]));
      }
    }
  }
}

// The warp's sums to shared memory, after the lanes with the same outputs have added theirs.
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
    }
  }
}

template <bool SILU_MUL>
__device__ __forceinline__ void gemv(const half* x, const char* weight, const Result& result, float* partials,
                                     int* arrivals, int rows, int outputs, int groups) {
  __shared__ SharedX shared_x[WARPS];
  __shared__ float left[WARPS][COUNT];
  const int warp = threadIdx.x / WARP;
  const int all_parts = (outputs + TILE_N - 1) / TILE_N * TILE_PARTS;
  const int batches = (groups * GROUP + BATCH_K - 1) / BATCH_K;
  const int begin = batches * blockIdx.y / gridDim.y, end = batches * (blockIdx.y + 1) / gridDim.y;

  float sums[PARTS][ROWS] = {};
  Place at = place<SILU_MUL>(weight, x, begin + warp, all_parts, groups);
  Ahead ahead;
  load(at, end, rows, groups, ahead);
  while (at.batch < end) {
    const Ahead now = ahead;
    share_x(now.x, shared_x[warp]);
    advance(at);
    load(at, end, rows, groups, ahead);
    multiply_batch(now, shared_x[warp], sums);
  }
  leave(sums, left[warp]);
  if (!add_up(left, partials, arrivals)) return;
  for (int i = threadIdx.x; i < COUNT; i += WARPS * WARP) {
    const int p = i / (ROWS * LANES), m = i / LANES % ROWS, part = part_of<SILU_MUL>(p, all_parts);
    const int n = part / TILE_PARTS * TILE_N + lane_column(part % TILE_PARTS * LANES + i % LANES);
    if (SILU_MUL && p % 2) continue;
    result.store(m, n, SILU_MUL ? silu_times(left[0][i], left[0][i + ROWS * LANES]) : left[0][i]);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
             half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows, int outputs,
             int groups) {
  gemv<false>(x, reinterpret_cast<const char*>(weight), {residual, y, rows, outputs}, partials, arrivals, rows,
              outputs, groups);
}

// outputs: rows of the weight, twice the width of y.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    awq_gemv_silu_mul(const half* __restrict__ x, const int* __restrict__ weight, const half* __restrict__ residual,
                      half* __restrict__ y, float* __restrict__ partials, int* __restrict__ arrivals, int rows,
                      int outputs, int groups) {
  gemv<true>(x, reinterpret_cast<const char*>(weight), {residual, y, rows, outputs / 2}, partials, arrivals, rows,
              outputs, groups);
}
