// Idea: queries are the 8 rows of a tensor-core tile, a tile of 32 keys its columns; both products run on mma.m8n8k4.
// Removes nearly all of the arithmetic from the other units: what is left is to load, to unpack, and softmax.
//
// The result is that of 1_warp_per_head. Grid (kv_heads * slices, splits, sequences), see slice.cuh and merge.cuh.
// q k^T: quad-pairs lie side by side along the keys, so that a lane loads its own key, 16 bytes at a time, and a row's
// maximum is three shuffles. p v: they lie side by side along the columns; a lane loads some columns of one token of
// four, which is what B in row order wants. Weights go through shared memory (no order of keys would leave them where
// the second product wants them), as exp2(exponent - largest + 14): sums are fp32, so the headroom of half precision
// serves small weights. Values, and keys in INT4, are rounded to halves; INT8 keys are exact, their scale multiplies
// the sum. The tile has eight rows whatever QUERIES is: with fewer the rest is padding. Newer GPUs emulate this
// instruction.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         query heads times rows that share a load: 1 to 8; more are several slices
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

#include "attention_decode/merge.cuh"
#include "attention_decode/tensor_values.cuh"
#include "common/swizzle.cuh"

using Keys = PagedStore<K_BITS, HEAD_DIM>;

constexpr int TILE = WARP;                        // tokens
constexpr int K_ELEMENTS = 128 / K_BITS;          // of a key, in 16 bytes
constexpr int K_LOADS = HEAD_DIM / K_ELEMENTS;    // of a key
constexpr int K_AHEAD = K_LOADS < 8 ? K_LOADS : 8;
constexpr int V_STEPS = TILE / 4;
constexpr int Q_ROW = HEAD_DIM + 8;               // halves: rows lie 16 bytes further apart than they are long
constexpr int PAIRS = HEAD_DIM / PAIR_SPAN;
constexpr float HEADROOM = 14.0f;
constexpr int BLOCKS = HEAD_DIM > 128 ? 2 : 3;    // on a multiprocessor: at most 255 or 168 registers a thread

struct Shared {
  half q[MMA_M * Q_ROW];
  half weights[WARPS][MMA_M * TILE];  // swizzled, see common/swizzle.cuh
};

// The block's queries, rows past the last one zero.
__device__ __forceinline__ void share_queries(const half* q, const Slice& slice, Shared& shared) {
  for (int i = threadIdx.x; i < MMA_M * HEAD_DIM / 8; i += BLOCK_THREADS) {
    const int row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
    const uint4 none = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(shared.q + row * Q_ROW + column) =
        row < slice.count ? *reinterpret_cast<const uint4*>(q + slice.place(row) * HEAD_DIM + column) : none;
  }
  __syncthreads();
}

// 16 bytes of the lane's key.
struct Key {
  unsigned words[4];

  __device__ __forceinline__ void load(const uint4* key, int i) { *reinterpret_cast<uint4*>(words) = __ldg(key + i); }
};

// products: of the 8 queries with the tile's 32 keys, as the tensor cores leave them. key, pairs: the lane's. What is
// used makes room for the same part of the next tile's key.
__device__ __forceinline__ void multiply_keys(const Shared& shared, const uint4* key, const half2* pairs,
                                              const uint4* next, Key (&ahead)[K_AHEAD], float (&products)[8]) {
  const half* row = shared.q + fragment_row(threadIdx.x % WARP) * Q_ROW;
#pragma unroll 1
  for (int begin = 0; begin < K_LOADS; begin += K_AHEAD) {
    const uint4* from = begin + K_AHEAD < K_LOADS ? key + begin + K_AHEAD : next;
#pragma unroll
    for (int a = 0; a < K_AHEAD; a++) {
      const int load = begin + a;
      const half2 pair = K_BITS == 4 ? __ldg(pairs + load * K_ELEMENTS / PAIR_SPAN) : half2{};
#pragma unroll
      for (int i = 0; i < K_ELEMENTS / 8; i++) {
        half2 k[4];
        unpack_eight<K_BITS>(ahead[a].words, i, pair, k);
        multiply(products, *reinterpret_cast<const uint4*>(row + load * K_ELEMENTS + 8 * i), k);
      }
      ahead[a].load(from, a);
    }
  }
}

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

// What a warp has found so far, of the two rows that a lane has of every product.
struct Found {
  float acc[PRODUCTS][8];
  float largest[2], sum[2];  // sum: the lane's part

  __device__ __forceinline__ Found() : acc{}, largest{LOWEST, LOWEST}, sum{} {}

  // exponents: of 8 queries and 32 tokens from ``at`` on. Leaves the weights in shared memory.
  __device__ __forceinline__ void weigh(float (&exponents)[8], const int (&seen)[2], int at, half* weights) {
    const int lane = threadIdx.x % WARP;
    half2 pairs[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float most = LOWEST;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        if ((i & 2) == 2 * r) {
          if (at + accumulator_column(lane, i) >= seen[r]) exponents[i] = LOWEST;
          most = fmaxf(most, exponents[i]);
        }
      }
      most = fmaxf(largest[r], row_max(most) - HEADROOM);
      const float before = exp2f(largest[r] - most);
      largest[r] = most, sum[r] *= before;
#pragma unroll
      for (int p = 0; p < PRODUCTS; p++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          if ((i & 2) == 2 * r) acc[p][i] *= before;
        }
      }
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float low = exponents[4 * c + 2 * r], high = exponents[4 * c + 2 * r + 1];
        pairs[r][c] = __floats2half2_rn(low == LOWEST ? 0.0f : exp2f(low - most),
                                        high == LOWEST ? 0.0f : exp2f(high - most));
        sum[r] += __low2float(pairs[r][c]) + __high2float(pairs[r][c]);
      }
    }
    const bool upper = lane >= WARP / 2;
#pragma unroll
    for (int n = 0; n < 4; n++) {  // the upper half stores the other pair of a row first: they would meet in the banks
      const int r = n / 2;
      const bool second = upper != (n % 2 == 1);
      const int row = accumulator_row(lane, 2 * r), column = accumulator_column(lane, second ? 4 : 0);
      half* to = weights + 8 * swizzled(row, column / 8) + column % 8;
      *reinterpret_cast<half2*>(to) = second ? pairs[r][1] : pairs[r][0];
    }
  }
};

// acc += weights values over the tile.
__device__ __forceinline__ void multiply_values(Found& found, const half* weights, const char* part,
                                                const Values& values, long long place, int last,
                                                FourValues (&ahead)[2]) {
  const int row = fragment_row(threadIdx.x % WARP);
#pragma unroll 1
  for (int step = 0; step < V_STEPS; step += 2) {  // past the tile its last token is loaded again
    const uint4 eight = *reinterpret_cast<const uint4*>(weights + 8 * swizzled(row, step / 2));
    ahead[0].multiply(found.acc, eight.x, eight.y);
    ahead[0].load(part, values, place, step + 2, last);
    ahead[1].multiply(found.acc, eight.z, eight.w);
    ahead[1].load(part, values, place, step + 3, last);
  }
}

// A warp's tiles of the split; it takes turns with the others of the block.
__device__ __forceinline__ void walk(Found& found, const Shared& shared, half* weights, const Keys& keys,
                                     const Values& values, const Slice& slice, float scale) {
  const int lane = threadIdx.x % WARP, own = lane_column(lane);
  int at = slice.begin + threadIdx.x / WARP * TILE;
  if (at >= slice.end) return;
  const int seen[2] = {slice.seen(accumulator_row(lane, 0)), slice.seen(accumulator_row(lane, 2))};
  long long place = slice.token(at);
  const uint4* key = keys.at<uint4>(place + own, 0);
  Key keys_ahead[K_AHEAD];
#pragma unroll
  for (int i = 0; i < K_AHEAD; i++) keys_ahead[i].load(key, i);
  while (true) {
    const int next_at = at + WARPS * TILE < slice.end ? at + WARPS * TILE : at;
    const int last = min(slice.end - 1 - at, TILE - 1);
    const long long next_place = slice.token(next_at);
    float exponents[8] = {}, k_scale[4];
    if constexpr (K_BITS == 8) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        k_scale[i] = __half2float(keys.scale(place + min(accumulator_column(lane, i % 2 + i / 2 * 4), last)));
      }
    }
    const uint4* next_key = keys.at<uint4>(next_place + own, 0);
    const half2* pairs = reinterpret_cast<const half2*>(keys.params) + (place + own) * PAIRS;
    multiply_keys(shared, key, pairs, next_key, keys_ahead, exponents);
    const char* part = values.at<char>(place, Value::first_column());
    FourValues values_ahead[2];
    values_ahead[0].load(part, values, place, 0, last);
    values_ahead[1].load(part, values, place, 1, last);
#pragma unroll
    for (int i = 0; i < 8; i++) exponents[i] *= scale * LOG2_E * (K_BITS == 8 ? k_scale[i % 2 + i / 4 * 2] : 1.0f);
    __syncwarp();  // all lanes are done with the weights before
    found.weigh(exponents, seen, at, weights);
    __syncwarp();
    multiply_values(found, weights, part, values, place, last, values_ahead);
    if (next_at == at) break;
    at = next_at, place = next_place, key = next_key;
  }
}

__device__ __forceinline__ void merge(const Found& found, Totals& totals) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float sum = row_sum(found.sum[r]);
    const int row = accumulator_row(lane, 2 * r);
    if ((lane & 14) == 0 && row < QUERIES) totals.parts[warp][row] = make_float2(found.largest[r], sum);
  }
  merge_warps(totals, [&](bool first) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = accumulator_row(lane, i);
      if (row >= QUERIES) continue;
      const float weight = totals.weight(row, warp, WARPS);
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
  share_queries(q, slice, shared);
  Found found;
  walk(found, shared, shared.weights[threadIdx.x / WARP], {k, k_params}, {v, v_params}, slice, scale);
  merge(found, totals);
  if (!merge_splits(totals, slice, partials, arrivals)) return;
  Result{gate, gate_row, gate_head, out, lse}.store(totals, slice);
}
