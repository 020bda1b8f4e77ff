// Idea: wide loads well ahead of their use, a tile of 32 tokens for each warp, whose p v is summed in half2.
// Removes the wait for memory, the shuffles and exponentials of every single token, and most of the conversions.
//
// The result is that of 1_warp_per_head. Grid (kv_heads * slices, splits, sequences), see slice.cuh and merge.cuh.
// q . k: see wide_keys.cuh; in the end lane i has the exponents of token i with all queries, so that softmax is one
// exponential a lane and query. p v: a lane has eight columns, and takes the weights of a token from shared memory. The
// 32 products of a tile's weights and values are summed in half precision, then in fp32. The weights of a tile are
// exp2(exponent - 5 - largest of the tile): such a sum never exceeds the largest |v|, and a tile is rounded by its own
// measure, whatever token elsewhere has a larger exponent. The scale of INT8 values is part of the weight.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         query heads times rows that share a load: 1 to 8; more are several slices
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

#include "attention_decode/merge.cuh"
#include "attention_decode/wide_keys.cuh"
#include "common/dequant.cuh"

using Values = PagedStore<V_BITS, HEAD_DIM>;

constexpr int V_LANES = HEAD_DIM / 8;         // lanes that share a value
constexpr int V_TOKENS = WARP / V_LANES;      // tokens whose values a warp loads at a time
constexpr int V_STEPS = TILE / V_TOKENS;
constexpr int V_AHEAD = 8;
constexpr int V_ROW = HEAD_DIM * V_BITS / 8;  // bytes of a token
constexpr float HEADROOM = 5.0f;              // log2(TILE)
constexpr int BLOCKS = QUERIES > 3 ? 2 : 3;   // on a multiprocessor: at most 255 or 168 registers a thread

// The sums over v that a warp has found so far, in shared memory: they are touched once a tile, and registers are
// short. Of each query, the lanes' first four columns and then their last four.
using Sums = float4[QUERIES][2][WARP];
constexpr int ROOM = WARPS * sizeof(Sums) / sizeof(float4);
static_assert(ROOM >= PIECES, "the totals fit where the sums were");

// The lane's columns of a tile's values. Past the last token that one is taken once more: weights of 0 do not help
// against what is no number.
struct ValuePart {
  const char* values;
  const half2* pairs;  // of 4 bits
  int first, last;     // tokens of the tile

  __device__ __forceinline__ ValuePart(const Values& all, long long place, int last_token) : last(last_token) {
    const int lane = threadIdx.x % WARP, column = 8 * (lane % V_LANES);
    first = lane / V_LANES;
    values = all.at<char>(place, column);
    if (V_BITS == 4) pairs = reinterpret_cast<const half2*>(all.params) + place * PAIRS + column / PAIR_SPAN;
  }
};

// A lane's eight columns of a value: 16, 8 or 4 bytes.
struct Value {
  unsigned words[V_BITS / 4];
  half2 pair;  // of 4 bits

  __device__ __forceinline__ void load(const ValuePart& part, int step) {
    const int token = min(part.first + step * V_TOKENS, part.last);
    const char* from = part.values + token * V_ROW;
    if constexpr (V_BITS == 16) *reinterpret_cast<uint4*>(words) = __ldg(reinterpret_cast<const uint4*>(from));
    if constexpr (V_BITS == 8) *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(from));
    if constexpr (V_BITS == 4) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
      pair = __ldg(part.pairs + token * PAIRS);
    }
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
  // before, now: by what earlier sums and those of the tile count.
  __device__ __forceinline__ uint4 weigh(const float (&exponents)[QUERIES], const int* seen, int token, float v_scale,
                                         float (&before)[QUERIES], float (&now)[QUERIES]) {
    half weights[8] = {};
    const float largest_scale = V_BITS == 8 ? warp_max(v_scale) : 1.0f;
    const float relative = V_BITS == 8 ? __fdividef(v_scale, largest_scale) : 1.0f;  // scales are 2^-17 or more
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      const bool sees = token < seen[j];
      const float reference = warp_max(sees ? exponents[j] : LOWEST) + HEADROOM;
      const float p = sees ? exp2f(exponents[j] - reference) : 0.0f;
      const float most = fmaxf(largest[j], reference);
      before[j] = exp2f(largest[j] - most), now[j] = exp2f(reference - most);
      largest[j] = most;
      weights[j] = __float2half_rn(p * relative);
      sum[j] = fmaf(V_BITS == 8 ? p : __half2float(weights[j]), now[j], sum[j] * before[j]);
      now[j] *= largest_scale;
    }
    return *reinterpret_cast<const uint4*>(weights);
  }
};

// sums = before sums + now (the tile's weights times its values).
__device__ __forceinline__ void add_values(Sums& sums, const ValuePart& part, Value (&ahead)[V_AHEAD],
                                           const uint4* weights, const float (&before)[QUERIES],
                                           const float (&now)[QUERIES]) {
  half2 tile[QUERIES][4] = {};
#pragma unroll 1
  for (int begin = 0; begin < V_STEPS; begin += V_AHEAD) {
#pragma unroll
    for (int i = 0; i < V_AHEAD; i++) {
      half2 v[4];
      ahead[i].unpack(v);
      ahead[i].load(part, begin + i + V_AHEAD);  // past the tile, of its last token: cheaper than to ask
      const uint4 of_token = weights[(begin + i) * V_TOKENS + part.first];
      const half2* pairs = reinterpret_cast<const half2*>(&of_token);
#pragma unroll
      for (int j = 0; j < QUERIES; j++) {
        const half2 weight = j % 2 ? __high2half2(pairs[j / 2]) : __low2half2(pairs[j / 2]);
#pragma unroll
        for (int c = 0; c < 4; c++) tile[j][c] = __hfma2(v[c], weight, tile[j][c]);
      }
    }
  }
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

// A warp's tiles of the split; it takes turns with the others of the block.
__device__ __forceinline__ void walk(Softmax& softmax, Sums& sums, const half* q, const Keys& keys,
                                     const Values& values, const Slice& slice, const int* seen, float scale,
                                     uint4* weights) {
  const int lane = threadIdx.x % WARP;
  int at = slice.begin + threadIdx.x / WARP * TILE;
  if (at >= slice.end) return;
  Queries queries;
  queries.load(q, slice);
  long long place = slice.token(at);
  KeyPart part(keys, place);
  KeysAhead keys_ahead(part);
  while (true) {
    const int next_at = at + WARPS * TILE < slice.end ? at + WARPS * TILE : at;
    const long long next_place = slice.token(next_at);
    const KeyPart next(keys, next_place);
    const ValuePart value_part(values, place, min(slice.end - 1 - at, TILE - 1));
    const long long own = place + min(lane, value_part.last);
    const float k_scale = K_BITS == 8 ? __half2float(keys.scale(own)) : 1.0f;
    const float v_scale = V_BITS == 8 ? __half2float(values.scale(own)) : 1.0f;
    float exponents[QUERIES];
    products<0, STEPS>(queries, part, next, keys_ahead, exponents);
    Value values_ahead[V_AHEAD];
#pragma unroll
    for (int i = 0; i < V_AHEAD; i++) values_ahead[i].load(value_part, i);
#pragma unroll
    for (int j = 0; j < QUERIES; j++) exponents[j] *= k_scale * (scale * LOG2_E);
    float before[QUERIES], now[QUERIES];
    __syncwarp();  // all lanes are done with the weights before
    weights[lane] = softmax.weigh(exponents, seen, at + lane, v_scale, before, now);
    __syncwarp();
    add_values(sums, value_part, values_ahead, weights, before, now);
    if (next_at == at) break;
    at = next_at, place = next_place, part = next;
  }
}

// From what the warps have found to the block's totals, which take its place.
__device__ __forceinline__ void merge(const Softmax& softmax, const Sums* sums, TotalsWithRoom<ROOM>& totals) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
  for (int j = 0; j < QUERIES; j++) {
    const float sum = warp_sum(softmax.sum[j]);
    if (lane == j) totals.parts[warp][j] = make_float2(softmax.largest[j], sum);
  }
  __syncthreads();
  if (threadIdx.x < QUERIES) totals.add_sums(threadIdx.x, WARPS);
  constexpr int MINE = (PIECES + BLOCK_THREADS - 1) / BLOCK_THREADS;
  float4 mine[MINE];
#pragma unroll
  for (int n = 0; n < MINE; n++) {
    const int i = min(static_cast<int>(threadIdx.x) + n * BLOCK_THREADS, PIECES - 1);
    const int query = i / (HEAD_DIM / 4), column = i % (HEAD_DIM / 4);
    mine[n] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int w = 0; w < WARPS; w++) {
      const float weight = totals.weight(query, w, WARPS);
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

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS)
    attention_decode(const half* __restrict__ q, const void* __restrict__ k, const half* __restrict__ k_params,
                     const void* __restrict__ v, const half* __restrict__ v_params, const int* __restrict__ table,
                     const int* __restrict__ lengths, const int* __restrict__ row_starts, const half* __restrict__ gate,
                     half* __restrict__ out, float* __restrict__ lse, float* partials, int* arrivals, int table_width,
                     int kv_heads, int group, long long gate_row, long long gate_head, float scale) {
  const Slice slice(table, lengths, row_starts, table_width, kv_heads, group);
  if (slice.idle()) return;
  __shared__ TotalsWithRoom<ROOM> totals;
  __shared__ uint4 weights[WARPS][TILE];
  __shared__ int seen[QUERIES];
  Sums* sums = reinterpret_cast<Sums*>(totals.pieces);
  for (int i = threadIdx.x; i < ROOM; i += BLOCK_THREADS) totals.pieces[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (threadIdx.x < QUERIES) seen[threadIdx.x] = slice.seen(threadIdx.x);
  __syncthreads();
  Softmax softmax;
  const int warp = threadIdx.x / WARP;
  walk(softmax, sums[warp], q, {k, k_params}, {v, v_params}, slice, seen, scale, weights[warp]);
  merge(softmax, sums, totals);
  if (!merge_splits(totals, slice, partials, arrivals)) return;
  Result{gate, gate_row, gate_head, out, lse}.store(totals, slice);
}
