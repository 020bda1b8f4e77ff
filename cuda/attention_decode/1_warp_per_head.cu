// Idea: a warp has one row and one query head, and walks along the tokens with a running maximum and sum.
// Removes the scores from memory: nothing of the size of the context is ever written.
//
// out[r][h] = sum_t softmax_t(q[r][h] . k[t] scale) v[t] (times sigmoid(gate[r][h])), over the tokens t that row r
// sees: its own position is that of the sequence's tokens that its place among the sequence's rows says, the last row's
// is the last token. q, out: fp16 [rows, heads, HEAD_DIM]; lse: fp32 [rows, heads] or null, the logarithm of the sum of
// exponentials. k, v: pages (common/paged.cuh); table: [sequences, table_width]. Keys in INT4 were rotated, and so was
// q. Grid (heads / WARPS, rows of the longest sequence, sequences). partials and arrivals are not used.
//   HEAD_DIM        64, 128 or 256
//   K_BITS, V_BITS  16, 8 or 4
//   QUERIES         as in the other rungs, not used
//   WARPS           of a block
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(V_BITS) || !defined(QUERIES) || !defined(WARPS)
#error "attention_decode is compiled with -D HEAD_DIM, K_BITS, V_BITS, QUERIES and WARPS"
#endif

#include "attention_decode/slice.cuh"
#include "common/reduce.cuh"

constexpr int COLUMNS = HEAD_DIM / WARP;  // of a lane: lane, lane + 32, ...

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    attention_decode(const half* __restrict__ q, const void* __restrict__ k, const half* __restrict__ k_params,
                     const void* __restrict__ v, const half* __restrict__ v_params, const int* __restrict__ table,
                     const int* __restrict__ lengths, const int* __restrict__ row_starts, const half* __restrict__ gate,
                     half* __restrict__ out, float* __restrict__ lse, float* partials, int* arrivals, int table_width,
                     int kv_heads, int group, long long gate_row, long long gate_head, float scale) {
  const PagedStore<K_BITS, HEAD_DIM> keys{k, k_params};
  const PagedStore<V_BITS, HEAD_DIM> values{v, v_params};
  const int lane = threadIdx.x % WARP, head = blockIdx.x * WARPS + threadIdx.x / WARP, heads = kv_heads * group;
  const int row = row_starts[blockIdx.z] + blockIdx.y, behind = row_starts[blockIdx.z + 1];
  if (head >= heads || row >= behind) return;
  const int seen = lengths[blockIdx.z] - (behind - 1 - row);
  const int* pages = table + static_cast<long long>(blockIdx.z) * table_width;

  const long long place = static_cast<long long>(row) * heads + head;
  float query[COLUMNS], acc[COLUMNS] = {}, largest = LOWEST, sum = 0.0f;
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    query[c] = __half2float(q[place * HEAD_DIM + lane + WARP * c]) * scale * LOG2_E;
  }
  for (int t = 0; t < seen; t++) {
    const long long token = place_of(pages[t / PAGE_TOKENS], kv_heads, head / group, t % PAGE_TOKENS);
    float product = 0.0f;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) product = fmaf(query[c], keys.element(token, lane + WARP * c), product);
    const float exponent = warp_sum(product), most = fmaxf(largest, exponent);
    const float before = exp2f(largest - most), p = exp2f(exponent - most);
    largest = most, sum = fmaf(sum, before, p);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) acc[c] = fmaf(p, values.element(token, lane + WARP * c), acc[c] * before);
  }
  if (lse && lane == 0) lse[place] = (largest + log2f(sum)) * LN_2;
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    const int column = lane + WARP * c;
    float result = acc[c] * inverse;
    if (gate) result /= 1.0f + __expf(-__half2float(gate[row * gate_row + head * gate_head + column]));
    out[place * HEAD_DIM + column] = __float2half_rn(result);
  }
}
