// The second half of the wide rung: the softmax of a tile of 32 tokens, and p v, whose 32 products are summed in half2.
//
// A lane has eight columns of a value, and takes the weights of a token from shared memory. They are
// exp2(exponent - 5 - largest of the tile): a sum of 32 products never exceeds the largest |v|, and a tile is rounded
// by its own measure, whatever token elsewhere has a larger exponent.
#pragma once

#include "attention_decode/merge.cuh"
#include "attention_decode/wide_keys.cuh"
#include "common/dequant.cuh"

using Values = PagedStore<V_BITS, HEAD_DIM>;

constexpr int V_LANES = HEAD_DIM / 8;         // lanes that share a value
constexpr int V_TOKENS = WARP / V_LANES;      // tokens whose values a warp loads at a time
constexpr int V_STEPS = TILE / V_TOKENS;
constexpr int V_AHEAD = V_STEPS < V_STEPS_AHEAD ? V_STEPS : V_STEPS_AHEAD;  // steps whose values are on their way
constexpr int V_ROW = HEAD_DIM * V_BITS / 8;  // bytes of a token
constexpr float HEADROOM = 5.0f;              // log2(TILE)

// The sums over v that a warp has found so far, in shared memory: they are touched once a tile, and registers are
// short. Of each query, the lanes' first four columns and then their last four.
using Sums = float4[QUERIES][2][WARP];

// Where the lane's columns of a tile's values begin. What lies behind the last token is read, too, but not looked at.
struct ValuePart {
  const char* values;
  const half2* pairs;  // of 4 bits

  __device__ __forceinline__ static int first() { return threadIdx.x % WARP / V_LANES; }

  __device__ __forceinline__ ValuePart(const Values& all, long long place) {
    const int column = 8 * (threadIdx.x % WARP % V_LANES);
    values = all.at<char>(place + first(), column);
    if constexpr (V_BITS == 4) {
      pairs = reinterpret_cast<const half2*>(all.params) + (place + first()) * PAIRS + column / PAIR_SPAN;
    }
  }

  __device__ __forceinline__ void advance(int steps) {
    values += steps * V_TOKENS * V_ROW;
    if constexpr (V_BITS == 4) pairs += steps * V_TOKENS * PAIRS;
  }
};

// A lane's eight columns of a value: 16, 8 or 4 bytes.
struct Value {
  unsigned words[V_BITS / 4];
  half2 pair;  // of 4 bits

  __device__ __forceinline__ void load(const ValuePart& part, int step) {
    const char* from = part.values + step * V_TOKENS * V_ROW;
    if constexpr (V_BITS == 16) *reinterpret_cast<uint4*>(words) = __ldg(reinterpret_cast<const uint4*>(from));
    if constexpr (V_BITS == 8) *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(from));
    if constexpr (V_BITS == 4) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
      pair = __ldg(part.pairs + step * V_TOKENS * PAIRS);
    }
  }

  // A weight of 0 does not help against what is no number.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < V_BITS / 4; i++) words[i] = 0;
    pair = half2{};
  }

  // As halves; bytes without their scale.
  __device__ __forceinline__ void unpack(half2 (&out)[4]) const {
    if constexpr (V_BITS == 16) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[c] = *reinterpret_cast<const half2*>(&words[c]);
    } else if constexpr (V_BITS == 8) {
      bytes_to_halves(make_uint2(words[0], words[1]), out);
    } else {
      dequantize_word<true>(words[0], pair, out);
    }
  }
};

// The running softmax of a warp.
struct Softmax {
  float largest[QUERIES], sum[QUERIES];  // sum: the lane's part

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int j = 0; j < QUERIES; j++) largest[j] = LOWEST, sum[j] = 0.0f;
  }

  // exponents: of the lane's token, which the queries see that see more than ``token``. Returns its weights, as halves.
  // before, now: by what earlier sums and those of the tile count. Those of INT8 values contain the token's scale, and
  // are measured by the largest product of both: what a small scale leaves of a weight is small beside the result, too.
  __device__ __forceinline__ uint4 weigh(const float (&exponents)[QUERIES], const int* seen, int token, float v_scale,
                                         float (&before)[QUERIES], float (&now)[QUERIES]) {
    half weights[8] = {};
    const float more = V_BITS == 8 ? log2f(v_scale) : 0.0f;  // scales are 2^-17 or more
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      const bool sees = token < seen[j];
      const float reference = warp_max(sees ? exponents[j] + more : LOWEST) + HEADROOM;
      const float p = sees ? exp2f(exponents[j] - reference) : 0.0f;
      const float most = fmaxf(largest[j], reference);
      before[j] = exp2f(largest[j] - most), now[j] = exp2f(reference - most);
      largest[j] = most;
      weights[j] = __float2half_rn(V_BITS == 8 ? p * v_scale : p);
      sum[j] = fmaf(V_BITS == 8 ? p : __half2float(weights[j]), now[j], sum[j] * before[j]);
    }
    return *reinterpret_cast<const uint4*>(weights);
  }

  // (largest, sum) of all lanes.
  __device__ __forceinline__ void leave(float2 (&part)[QUERIES]) const {
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      const float total = warp_sum(sum[j]);
      if (threadIdx.x % WARP == j) part[j] = make_float2(largest[j], total);
    }
  }
};

// The lane's columns of the sums over one tile, in half precision.
using TileSums = half2[QUERIES][4];

__device__ __forceinline__ void load_values(Value (&ahead)[V_AHEAD], const ValuePart& part) {
#pragma unroll
  for (int i = 0; i < V_AHEAD; i++) ahead[i].load(part, i);
}

// A tile's weights times its values, of which the first V_AHEAD steps are on their way; then those of ``next`` are, if
// CARRIED. held: tokens of the tile.
template <bool WHOLE, bool CARRIED>
__device__ __forceinline__ void multiply_values(TileSums& tile, Value (&ahead)[V_AHEAD], ValuePart part,
                                                const ValuePart& next, int held, const uint4* weights) {
#pragma unroll 1
  for (int begin = 0; begin < V_STEPS; begin += V_AHEAD) {
    const bool last = begin + V_AHEAD == V_STEPS;
    part.advance(V_AHEAD);
    if (CARRIED && last) part = next;
#pragma unroll
    for (int i = 0; i < V_AHEAD; i++) {
      const int token = (begin + i) * V_TOKENS + ValuePart::first();
      if (!WHOLE && token >= held) ahead[i].clear();
      half2 v[4];
      ahead[i].unpack(v);
      if (CARRIED || !last) ahead[i].load(part, i);
      const uint4 of_token = weights[token];
      const half2* pairs = reinterpret_cast<const half2*>(&of_token);
#pragma unroll
      for (int j = 0; j < QUERIES; j++) {
        const half2 weight = j % 2 ? __high2half2(pairs[j / 2]) : __low2half2(pairs[j / 2]);
#pragma unroll
        for (int c = 0; c < 4; c++) tile[j][c] = __hfma2(v[c], weight, tile[j][c]);
      }
    }
  }
}

// sums = before sums + now tile.
__device__ __forceinline__ void add_tile(Sums& sums, const TileSums& tile, const float (&before)[QUERIES],
                                         const float (&now)[QUERIES]) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int j = 0; j < QUERIES; j++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float4 total = sums[j][i][lane];
      total.x = fmaf(__low2float(tile[j][2 * i]), now[j], total.x * before[j]);
      total.y = fmaf(__high2float(tile[j][2 * i]), now[j], total.y * before[j]);
      total.z = fmaf(__low2float(tile[j][2 * i + 1]), now[j], total.z * before[j]);
      total.w = fmaf(__high2float(tile[j][2 * i + 1]), now[j], total.w * before[j]);
      sums[j][i][lane] = total;
    }
  }
}

// From what COUNT warps have found to the block's totals, which take the place of the sums. totals.parts is filled.
template <int COUNT, int ROOM>
__device__ __forceinline__ void merge(const Sums* sums, TotalsWithRoom<ROOM>& totals) {
  __syncthreads();
  if (threadIdx.x < QUERIES) totals.add_sums(threadIdx.x, COUNT);
  constexpr int MINE = (PIECES + BLOCK_THREADS - 1) / BLOCK_THREADS;
  float4 mine[MINE];
#pragma unroll
  for (int n = 0; n < MINE; n++) {
    const int i = min(static_cast<int>(threadIdx.x) + n * BLOCK_THREADS, PIECES - 1);
    const int query = i / (HEAD_DIM / 4), column = i % (HEAD_DIM / 4);
    mine[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int w = 0; w < COUNT; w++) {
      const float weight = totals.weight(query, w, COUNT);
      for (int owner = column / 2; owner < WARP; owner += V_LANES) {
        const float4 part = sums[w][query][column % 2][owner];
        mine[n].x = fmaf(part.x, weight, mine[n].x), mine[n].y = fmaf(part.y, weight, mine[n].y);
        mine[n].z = fmaf(part.z, weight, mine[n].z), mine[n].w = fmaf(part.w, weight, mine[n].w);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < MINE; n++) {
    const int i = threadIdx.x + n * BLOCK_THREADS;
    if (i < PIECES) totals.pieces[i] = mine[n];
  }
  __syncthreads();
}
