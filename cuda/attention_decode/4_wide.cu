// Idea: wide loads well ahead of their use, a tile of 32 tokens for each warp, whose p v is summed in half2.
// Removes the wait for memory, the shuffles and exponentials of every single token, and most of the conversions.
//
// The result is that of 1_warp_per_head. Grid (kv_heads * slices, splits, sequences), see slice.cuh and merge.cuh.
// q . k: see wide_keys.cuh; in the end lane i has the exponents of token i with all queries, so that softmax is one
// exponential a lane and query. p v: see wide_values.cuh; the 32 products of a tile's weights and values are summed in
// half precision, then in fp32.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         query heads times rows that share a load: 1 to 8; more are several slices
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

constexpr int K_STEPS_AHEAD = K_BITS == 16 ? 4 : 8;

constexpr int V_STEPS_AHEAD = 8;

#include "attention_decode/wide_values.cuh"

constexpr bool CARRIED = V_BITS < 16;       // values of the next tile are on their way while keys are multiplied
constexpr int BLOCKS = QUERIES > (K_BITS == 16 ? 2 : 3) ? 2 : 3;  // on a multiprocessor: at most 255 or 168 registers

constexpr int ROOM = WARPS * sizeof(Sums) / sizeof(float4);
static_assert(ROOM >= PIECES, "the totals fit where the sums were");

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
  ValuePart value_part(values, place);
  Value values_ahead[V_AHEAD];
  if (CARRIED) load_values(values_ahead, value_part);
  while (true) {
    const int next_at = at + WARPS * TILE < slice.end ? at + WARPS * TILE : at;
    const long long next_place = slice.token(next_at);
    const KeyPart next(keys, next_place);
    const ValuePart next_values(values, next_place);
    const int held = min(slice.end - at, TILE);
    const long long own = place + min(lane, held - 1);
    const float k_scale = K_BITS == 8 ? __half2float(keys.scale(own)) : 1.0f;
    const float v_scale = V_BITS == 8 ? __half2float(values.scale(own)) : 1.0f;
    float exponents[QUERIES];
    products<0, STEPS>(queries, part, next, keys_ahead, exponents);
    if (!CARRIED) load_values(values_ahead, value_part);
#pragma unroll
    for (int j = 0; j < QUERIES; j++) exponents[j] *= k_scale * (scale * LOG2_E);
    float before[QUERIES], now[QUERIES];
    __syncwarp();  // all lanes are done with the weights before
    weights[lane] = softmax.weigh(exponents, seen, at + lane, v_scale, before, now);
    __syncwarp();
    TileSums tile = {};
    if (held == TILE) {
      multiply_values<true, CARRIED>(tile, values_ahead, value_part, next_values, held, weights);
    } else {
      multiply_values<false, CARRIED>(tile, values_ahead, value_part, next_values, held, weights);
    }
    add_tile(sums, tile, before, now);
    if (next_at == at) break;
    at = next_at, place = next_place, part = next, value_part = next_values;
  }
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
  softmax.leave(totals.parts[warp]);
  merge<WARPS>(sums, totals);
  if (!merge_splits(totals, slice, partials, arrivals)) return;
  Result{gate, gate_row, gate_head, out, lse}.store(totals, slice);
}
