// Idea: queries are the 8 rows of a tensor-core tile, a tile of 32 keys its columns; both products run on mma.m8n8k4.
// Removes nearly all of the arithmetic from the other units: what is left is to load, to unpack, and softmax.
//
// The result is that of 1_warp_per_head. Grid (kv_heads * slices, splits, sequences), see slice.cuh and merge.cuh.
// q k^T: see tensor_keys.cuh; a row's maximum is three shuffles. p v: see tensor_values.cuh. Weights go through shared
// memory (no order of keys would leave them where the second product wants them), as exp2((exponent - largest) + 14):
// sums are fp32, so the headroom of half precision serves small weights. (Not as exponent - (largest - 14): where
// exponents are near 1e8, fp32 has no room for the 14.) Only values in INT4 are rounded to halves: those in INT8 are
// whole numbers, whose scales are part of the weights. The tile has eight rows whatever QUERIES is: with fewer the rest
// is padding. Newer GPUs emulate this instruction.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         query heads times rows that share a load: 1 to 8; more are several slices
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

#include "attention_decode/merge.cuh"
#include "attention_decode/tensor_keys.cuh"
#include "attention_decode/tensor_values.cuh"
#include "common/swizzle.cuh"

constexpr int V_STEPS = TILE / 4;
constexpr int V_UNROLLED = HEAD_DIM > 128 ? 1 : V_STEPS / 2;  // passes; with 256 columns all would be too much code
constexpr float HEADROOM = 14.0f, WITHOUT_IT = 1.0f / 16384.0f;  // 2^-14
constexpr float NO_EXPONENT = -1e38f;    // so far above LOWEST that a token with that one weighs nothing beside it
constexpr float SMALLEST_UNIT = 1e-30f;  // before a row has met a token: not 0, it has an inverse
constexpr int BLOCKS = HEAD_DIM == 64 ? 4 : HEAD_DIM == 128 ? 3 : 2;  // on a multiprocessor: 128, 168 or 255 registers

struct Shared {
  Queries queries;
  half weights[WARPS][MMA_M * TILE];  // swizzled, see common/swizzle.cuh
};

// Over the lanes that hold the same rows of a product.
__device__ __forceinline__ float row_max(float value) {
#pragma unroll
  for (int distance = 2; distance <= 8; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
  }
  return value;
}

__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
  for (int distance = 2; distance <= 8; distance *= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
  return value;
}

// The largest power of two that is not above x, and its inverse.
__device__ __forceinline__ float power_below(float x) { return __uint_as_float(__float_as_uint(x) & 0x7f800000u); }
__device__ __forceinline__ float inverse_of_power(float x) { return __uint_as_float(0x7f000000u - __float_as_uint(x)); }

// What a warp has found so far, of the two rows that a lane has of every product. Weights and all sums are 2^HEADROOM
// times what they stand for.
struct Found {
  float acc[PRODUCTS][8];
  float largest[2], sum[2];  // sum: the lane's part
  float unit[2];             // of acc: a power of two with INT8 values, else 1

  __device__ __forceinline__ Found() : acc{}, largest{NO_EXPONENT, NO_EXPONENT}, sum{}, unit{1.0f, 1.0f} {}

  // The weights of row r for the lane's four tokens of a tile, 0 from token ``seen`` on. before: by what earlier sums
  // count.
  __device__ __forceinline__ void weigh(int r, const float (&exponents)[8], int seen, int at, float (&weights)[4],
                                        float& before) {
    float four[4], most = LOWEST;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int i = accumulator(r, c), token = at + accumulator_column(threadIdx.x % WARP, i);
      four[c] = token < seen ? exponents[i] : LOWEST;
      most = fmaxf(most, four[c]);
    }
    most = fmaxf(largest[r], row_max(most));
    before = exp2f(largest[r] - most);
    largest[r] = most, sum[r] *= before;
#pragma unroll
    for (int c = 0; c < 4; c++) weights[c] = exp2f(four[c] - most + HEADROOM);
  }

  // INT8: the weights get the scales of their tokens' values, from 2^-17 to 2^9. They count in a unit of the row, which
  // the largest of them so far is one to two of: the halves have the same room for small weights as without scales.
  // A weight of 0 stays 0: the scale of a token that is not there is no number.
  __device__ __forceinline__ void take_scales(int r, const TileScales<V_BITS>& scales, float (&weights)[4],
                                              float& before) {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      sum[r] += weights[c];
      weights[c] = weights[c] == 0.0f ? 0.0f : weights[c] * scales.scale(accumulator(r, c));
      most = fmaxf(most, weights[c]);
    }
    before *= unit[r];
    unit[r] = power_below(fmaxf(fmaxf(before, row_max(most) * WITHOUT_IT), SMALLEST_UNIT));
    const float inverse = inverse_of_power(unit[r]);
    before *= inverse;
#pragma unroll
    for (int c = 0; c < 4; c++) weights[c] *= inverse;
  }

  // exponents: of 8 queries and the tokens from ``at`` on. Leaves the weights in shared memory.
  __device__ __forceinline__ void weigh_tile(const float (&exponents)[8], const TileScales<V_BITS>& scales,
                                             const int (&seen)[2], int at, half* shared) {
    half2 pairs[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float weights[4], before;
      weigh(r, exponents, seen[r], at, weights, before);
      if constexpr (V_BITS == 8) take_scales(r, scales, weights, before);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        pairs[r][c] = __floats2half2_rn(weights[2 * c], weights[2 * c + 1]);
        if (V_BITS != 8) sum[r] += __low2float(pairs[r][c]) + __high2float(pairs[r][c]);
      }
#pragma unroll
      for (int p = 0; p < PRODUCTS; p++) {
#pragma unroll
        for (int c = 0; c < 4; c++) acc[p][accumulator(r, c)] *= before;
      }
    }
    store(pairs, shared);
  }

  // pairs: weights of the lane's rows, for two neighbouring tokens and two that are four further on.
  __device__ __forceinline__ static void store(const half2 (&pairs)[2][2], half* shared) {
    const int lane = threadIdx.x % WARP;
    const bool upper = lane >= WARP / 2;
#pragma unroll
    for (int n = 0; n < 4; n++) {  // the upper half stores the other pair of a row first: they would meet in the banks
      const int r = n / 2;
      const bool second = upper != (n % 2 == 1);
      const int row = accumulator_row(lane, 2 * r), column = accumulator_column(lane, second ? 4 : 0);
      half* to = shared + 8 * swizzled(row, column / 8) + column % 8;
      *reinterpret_cast<half2*>(to) = second ? pairs[r][1] : pairs[r][0];
    }
  }

  // The accumulator of the lane's row r and token c, of two and of four.
  __device__ __forceinline__ static int accumulator(int r, int c) { return 4 * (c / 2) + 2 * r + c % 2; }
};

// acc += weights values over the tile.
__device__ __forceinline__ void multiply_values(Found& found, const half* weights, const ValuePart& part,
                                                FourValues (&ahead)[2]) {
  const int row = fragment_row(threadIdx.x % WARP);
#pragma unroll(V_UNROLLED)
  for (int step = 0; step < V_STEPS; step += 2) {  // past the tile its last token is loaded again
    const uint4 eight = *reinterpret_cast<const uint4*>(weights + 8 * swizzled(row, step / 2));
    ahead[0].multiply(found.acc, eight.x, eight.y);
    ahead[0].load(part, step + 2);
    ahead[1].multiply(found.acc, eight.z, eight.w);
    ahead[1].load(part, step + 3);
  }
}

// A warp's tiles of the split; it takes turns with the others of the block.
__device__ __forceinline__ void walk(Found& found, const Queries& queries, half* weights, const Keys& keys,
                                     const Values& values, const Slice& slice, float scale) {
  const int lane = threadIdx.x % WARP, own = lane_column(lane);
  int at = slice.begin + threadIdx.x / WARP * TILE;
  if (at >= slice.end) return;
  const int seen[2] = {slice.seen(accumulator_row(lane, 0)), slice.seen(accumulator_row(lane, 2))};
  long long place = slice.token(at);
  const uint4* key = keys.at<uint4>(place + own, 0);
  KeysAhead keys_ahead(keys, place, key);
  while (true) {
    const int next_at = at + WARPS * TILE < slice.end ? at + WARPS * TILE : at;
    const long long next_place = slice.token(next_at);
    const uint4* next_key = keys.at<uint4>(next_place + own, 0);
    TileScales<V_BITS> scales;
    if constexpr (V_BITS == 8) scales.load(values, place);
    float exponents[8] = {};
    multiply_keys(queries, keys, key, next_key, next_place, keys_ahead, exponents);
    const ValuePart part(values, place, min(slice.end - 1 - at, TILE - 1));
    FourValues values_ahead[2];
    values_ahead[0].load(part, 0);
    values_ahead[1].load(part, 1);
#pragma unroll
    for (int i = 0; i < 8; i++) exponents[i] *= scale * LOG2_E;
    __syncwarp();  // all lanes are done with the weights before
    found.weigh_tile(exponents, scales, seen, at, weights);
    __syncwarp();
    multiply_values(found, weights, part, values_ahead);
    if (next_at == at) break;
    at = next_at, place = next_place, key = next_key;
  }
}

__device__ __forceinline__ void merge(const Found& found, Totals& totals) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = row_sum(found.sum[r]) * WITHOUT_IT;
    const int row = accumulator_row(lane, 2 * r);
    if ((lane & 14) == 0 && row < QUERIES) totals.parts[warp][row] = make_float2(found.largest[r], sum);
  }
  merge_warps(totals, [&](bool first) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = accumulator_row(lane, i);
      if (row >= QUERIES) continue;
      const float weight = totals.weight(row, warp, WARPS) * WITHOUT_IT * found.unit[i / 2 % 2];
#pragma unroll
      for (int p = 0; p < PRODUCTS; p++) {
        float& total = totals.at(row, value_column(lane, p, i));
        total = fmaf(found.acc[p][i], weight, first ? 0.0f : total);
      }
    }
  });
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    attention_decode(const half* __restrict__ q, const void* __restrict__ k, const half* __restrict__ k_params,
                     const void* __restrict__ v, const half* __restrict__ v_params, const int* __restrict__ table,
                     const int* __restrict__ lengths, const int* __restrict__ row_starts, const half* __restrict__ gate,
                     half* __restrict__ out, float* __restrict__ lse, float* partials, int* arrivals, int table_width,
                     int kv_heads, int group, long long gate_row, long long gate_head, float scale) {
  const Slice slice(table, lengths, row_starts, table_width, kv_heads, group);
  if (slice.idle()) return;
  __shared__ Totals totals;
  __shared__ __align__(16) Shared shared;
  shared.queries.load(q, slice);
  Found found;
  walk(found, shared.queries, shared.weights[threadIdx.x / WARP], {k, k_params}, {v, v_params}, slice, scale);
  merge(found, totals);
  if (!merge_splits(totals, slice, partials, arrivals)) return;
  Result{gate, gate_row, gate_head, out, lse}.store(totals, slice);
}
