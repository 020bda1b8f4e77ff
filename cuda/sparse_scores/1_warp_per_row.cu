// Idea: a warp takes a row of queries, its lanes a key each, and adds up the exponentials of a page by shuffles.
// Removes the scores themselves: of 64 of them one number leaves the chip.
//
// out[tile][kv_head][row][segment] = log sum_j exp(scale x[row] . k[j] + weights[j]) over the keys j of a segment.
// x [tiles, kv_heads, rows, D]; keys: pages of 64 (common/paged.cuh), table [S, width] those of each sequence;
// sequences, visible [tiles]: whose pages a tile asks about, and how many from the first on (the rest become -inf);
// weights fp32 [pages, kv_heads, 64] or null: 0. Grid: width, kv_heads, tiles.
//   HEAD_DIM  D: 64, 128 or 256        K_BITS  of the keys: 16, 8 or 4
//   SEGMENT   keys that share a result: 64 or 8
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(SEGMENT)
#error "sparse_scores is compiled with -D HEAD_DIM, K_BITS and SEGMENT"
#endif

#include "keys.cuh"

constexpr int WARPS = 4, PARTS = PAGE_TOKENS / WARP;
constexpr int SHARING = SEGMENT < WARP ? SEGMENT : WARP;  // neighbouring lanes whose keys are of one segment

// Sums of exponentials, with the maximum that was taken out of them.
struct LogSum {
  float most, sum;
  __device__ __forceinline__ void add(const LogSum& other) {
    const float larger = fmaxf(most, other.most);
    sum = sum * __expf(most - larger) + other.sum * __expf(other.most - larger);
    most = larger;
  }
};

__device__ __forceinline__ float dot(const half* row, const Keys& keys, long long place) {
  float total = 0.0f;
  for (int piece = 0; piece < HEAD_DIM / 8; piece++) {
    const uint4 key = key_piece(keys, place, piece), query = __ldg(reinterpret_cast<const uint4*>(row) + piece);
    const half2* k = reinterpret_cast<const half2*>(&key);
    const half2* q = reinterpret_cast<const half2*>(&query);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      total = fmaf(__low2float(q[i]), __low2float(k[i]), total);
      total = fmaf(__high2float(q[i]), __high2float(k[i]), total);
    }
  }
  return total;
}

extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    sparse_scores(const half* __restrict__ x, const void* __restrict__ values, const half* __restrict__ params,
                  const float* __restrict__ weights, const int* __restrict__ table, const int* __restrict__ sequences,
                  const int* __restrict__ visible, float* __restrict__ out, int kv_heads, int rows, int width,
                  float scale) {
  const Work work(table, sequences, visible, kv_heads, rows, width);
  if (!work.scored) {
    work.leave_out(out, rows);
    return;
  }
  const Keys keys{values, params};
  const half* x_rows = rows_of_block(x, kv_heads, rows);
  const int lane = threadIdx.x % WARP;
  for (int row = threadIdx.x / WARP; row < rows; row += WARPS) {
    LogSum sums[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const long long place = work.place + part * WARP + lane;
      const float score = dot(x_rows + row * HEAD_DIM, keys, place) * scale + (weights ? weights[place] : 0.0f);
      sums[part] = {fmaxf(score, LEAST), score > LEAST ? 1.0f : 0.0f};
    }
    if constexpr (SEGMENT == PAGE_TOKENS) sums[0].add(sums[1]);
#pragma unroll
    for (int part = 0; part < (SEGMENT == PAGE_TOKENS ? 1 : PARTS); part++) {
#pragma unroll
      for (int distance = SHARING / 2; distance > 0; distance /= 2) {
        sums[part].add({__shfl_xor_sync(ALL_LANES, sums[part].most, distance),
                        __shfl_xor_sync(ALL_LANES, sums[part].sum, distance)});
      }
      if (lane % SHARING == 0) {
        const int segment = part * (WARP / SHARING) + lane / SHARING;
        out[work.result + static_cast<long long>(row) * work.pitch + segment] =
            sums[part].most + __logf(sums[part].sum);
      }
    }
  }
}
