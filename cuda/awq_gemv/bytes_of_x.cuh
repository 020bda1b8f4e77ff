// The last rung's arrangement of warps and lanes, and x of a batch of inputs as bytes in shared memory.
// Compiled with the macros of 5_integer_dot.cu.
#pragma once

#include "awq_gemv/result.cuh"
#include "common/vector.cuh"

// A block has PARTS times LANES outputs, and so has each of its warps, which take turns along K: an x that was read
// serves all parts, and what it cost to split x, all outputs. Lanes beyond LANES have the same outputs and other inputs.
constexpr int LANES = ROWS == 1 ? 16 : 32, PARTS = 2;
constexpr int BATCH_K = 128;                        // inputs that a warp takes at a time
constexpr int BATCH_CHUNKS = BATCH_K / CHUNK_K;
constexpr int BATCH_GROUPS = BATCH_K / GROUP;
constexpr int SHARERS = WARP / LANES;               // lanes with the same outputs
constexpr int DEPTH = BATCH_CHUNKS / SHARERS;       // chunks of a lane in a batch
constexpr int GROUP_CHUNKS = GROUP / CHUNK_K;
constexpr int RUN = GROUP_CHUNKS > SHARERS ? GROUP_CHUNKS / SHARERS : 1;  // chunks of a lane in one group
constexpr int PAIRS = DEPTH / RUN;
constexpr int GROUP_BYTES = sizeof(PackedGroup<GROUP>);
constexpr int BATCH_BYTES = BATCH_GROUPS * GROUP_BYTES;
constexpr int CHUNK_BYTES = TILE_N * sizeof(uint4);
constexpr int TILE_PARTS = TILE_N / LANES;
constexpr int COUNT = PARTS * ROWS * LANES;         // sums of a warp

// x of a batch in shared memory. The eight inputs of a word of weights are two words here, as masks leave them there:
// inputs 0 4 1 5 and 2 6 3 7. Lanes of a warp read up to two chunks at a time, from different banks.
enum Byte { LOW, MIDDLE, HIGH, BYTES };
constexpr int CHUNK_WORDS = CHUNK_K / 4;
constexpr int X_WORDS = ROWS == 8 ? 2 : 4;          // that one load takes; with eight rows, registers are short
using Words = typename Moved<4 * X_WORDS>::type;
struct __align__(16) SharedChunk {
  unsigned x[ROWS][BYTES][CHUNK_WORDS];
  unsigned apart[4];                                // leaves no two chunks a multiple of 32 words apart
};
struct SharedX {
  SharedChunk chunks[BATCH_CHUNKS];
  float sums[BATCH_GROUPS][ROWS];                   // of the x of a group; of a lane's share, where lanes share groups
  float units[ROWS];
  int wide[ROWS];                                   // whether x needs all three bytes
};

// The power of two that makes a batch's largest |x| fill ``bits`` bits; subnormal and zero rows get the smallest half's.
__device__ __forceinline__ float unit_of(float largest, int bits) {
  constexpr float SMALLEST = 1.0f / (1 << 24);
  const unsigned exponent = __float_as_uint(fmaxf(largest, SMALLEST)) >> 23;
  return __uint_as_float((exponent - (bits - 1)) << 23);
}

// Whether 15 bits and a sign are enough: in half of the lanes, all four |x| are at least 1/32 of the largest. These
// lose one of their 11 bits at most, and the others no more than that in absolute terms, whether or not the largest
// meet q = z. (That the largest of each lane were near the largest of all would say nothing: one outlier a lane would
// do.)
constexpr int ENOUGH_LANES = 16;
__device__ __forceinline__ bool is_tame(float smallest_of_lane, float largest) {
  return __popc(__ballot_sync(ALL_LANES, smallest_of_lane * 32.0f >= largest)) >= ENOUGH_LANES;
}

// One row of a batch from the registers of a warp to shared memory, with the sum over each group.
__device__ __forceinline__ void share_row(const half2 (&x)[2], int m, SharedX& shared) {
  const int lane = threadIdx.x % WARP;
  SharedChunk& chunk = shared.chunks[lane / 8];
  const float2 front = __half22float2(x[0]), back = __half22float2(x[1]);
  float sum = front.x + front.y + back.x + back.y;
#pragma unroll
  for (int distance = 1; distance < GROUP_CHUNKS * 8; distance *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
  const float fronts[2] = {fabsf(front.x), fabsf(front.y)}, backs[2] = {fabsf(back.x), fabsf(back.y)};
  const float largest = warp_max(fmaxf(fmaxf(fronts[0], fronts[1]), fmaxf(backs[0], backs[1])));
  const bool tame = is_tame(fminf(fminf(fronts[0], fronts[1]), fminf(backs[0], backs[1])), largest);
  const float unit = unit_of(largest, tame ? 15 : 23);
  const float scale = __uint_as_float((254u << 23) - __float_as_uint(unit));  // 1 / unit
  const int a = __float2int_rn(front.x * scale), b = __float2int_rn(back.x * scale);
  const int c = __float2int_rn(front.y * scale), d = __float2int_rn(back.y * scale);
  const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);  // a0 b0 a1 b1, c0 d0 c1 d1
  chunk.x[m][LOW][lane % 8] = __byte_perm(ab, cd, 0x5410);
  chunk.x[m][MIDDLE][lane % 8] = __byte_perm(ab, cd, 0x7632);
  chunk.x[m][HIGH][lane % 8] = __byte_perm(__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062), 0x5410);
  constexpr int OF_GROUP = GROUP_CHUNKS < SHARERS ? GROUP_CHUNKS : SHARERS;  // lanes that share the group's inputs
  if (lane % (GROUP_CHUNKS * 8) == 0) shared.sums[lane / (GROUP_CHUNKS * 8)][m] = sum * (1.0f / OF_GROUP);
  if (lane == 0) {
    shared.units[m] = unit;
    shared.wide[m] = !tame;
  }
}

// x of a batch for the warp alone.
__device__ __forceinline__ void share_x(const half2 (&x)[ROWS][2], SharedX& shared) {
  __syncwarp();  // all lanes are done with the x before
#pragma unroll
  for (int m = 0; m < ROWS; m++) share_row(x[m], m, shared);
  __syncwarp();
}
