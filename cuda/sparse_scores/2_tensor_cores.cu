// Idea: a page's keys become halves in shared memory once, and the tensor cores multiply 16 rows by all 64 of them.
// Removes the reading and dequantizing of keys for every row, and the multiplications one by one.
//
// out[tile][kv_head][row][segment] = log sum_j exp(scale x[row] . k[j] + weights[j]) over the keys j of a segment.
// x [tiles, kv_heads, rows, D]; keys: pages of 64 (common/paged.cuh), table [S, width] those of each sequence;
// sequences, visible [tiles]: whose pages a tile asks about, and how many from the first on (the rest become -inf);
// weights fp32 [pages, kv_heads, 64] or null: 0. Grid: width, kv_heads, tiles.
//   HEAD_DIM  D: 64, 128 or 256        K_BITS  of the keys: 16, 8 or 4
//   SEGMENT   keys that share a result: 64 or 8
// A lane's column of B is the key of its own number, in either half of the page: the eight lanes that load 16 bytes
// together then meet eight rows that lie one after the other, and with a piece of padding all banks once. What is a sum
// over keys does not ask for their order.
#if !defined(HEAD_DIM) || !defined(K_BITS) || !defined(SEGMENT)
#error "sparse_scores is compiled with -D HEAD_DIM, K_BITS and SEGMENT"
#endif

#include "common/mma.cuh"
#include "keys.cuh"

constexpr int WARPS = 4, THREADS = WARPS * WARP;
constexpr int M_TILES = 2;                  // of 8 rows, that a warp multiplies at a time
constexpr int PARTS = PAGE_TOKENS / WARP;   // of 32 keys
constexpr int PIECES = HEAD_DIM / FRAGMENT_K, PITCH = PIECES + 1;

// Where accumulator i of a part lies: its key, and with it the segment.
__device__ __forceinline__ int key_of(int lane, int part, int i) {
  return part * WARP + (lane & 2) + (i & 1) + (lane & 12) + (i & 4) * 4;
}

// The logarithm of the sum of exponentials over COUNT scores of each of the lanes that differ in the bits of MASK.
template <int COUNT, int MASK>
__device__ __forceinline__ float log_sum(const float (&scores)[COUNT]) {
  float most = LEAST, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < COUNT; i++) most = fmaxf(most, scores[i]);
#pragma unroll
  for (int bit = 2; bit <= MASK; bit *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, bit));
#pragma unroll
  for (int i = 0; i < COUNT; i++) sum += __expf(scores[i] - most);
#pragma unroll
  for (int bit = 2; bit <= MASK; bit *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, bit);
  return most + __logf(sum);
}

// One row of a lane's accumulators (i & 2 tells which), as results of segments.
__device__ __forceinline__ void store_row(const float (&acc)[PARTS][8], const float (&weights)[PARTS][4], int second,
                                          float scale, bool inside, float* to) {
  const int lane = threadIdx.x % WARP;
  float scores[PARTS][4];
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      scores[part][j] = acc[part][(j & 1) + 2 * second + (j & 2) * 2] * scale + weights[part][j];
    }
  }
  if constexpr (SEGMENT == PAGE_TOKENS) {
    const float result = log_sum<4 * PARTS, 8>(reinterpret_cast<float(&)[4 * PARTS]>(scores));
    if (inside && (lane & 14) == 0) *to = result;
  } else {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
      for (int far = 0; far < 2; far++) {
        const float pair[2] = {scores[part][2 * far], scores[part][2 * far + 1]};
        const float result = log_sum<2, 4>(pair);
        if (inside && (lane & 6) == 0) to[key_of(lane, part, 4 * far) / SEGMENT] = result;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sparse_scores(const half* __restrict__ x, const void* __restrict__ values, const half* __restrict__ params,
                  const float* __restrict__ weights, const int* __restrict__ table, const int* __restrict__ sequences,
                  const int* __restrict__ visible, float* __restrict__ out, int kv_heads, int rows, int width,
                  float scale) {
  __shared__ uint4 shared[PAGE_TOKENS * PITCH];
  const Work work(table, sequences, visible, kv_heads, rows, width);
  if (!work.scored) {
    work.leave_out(out, rows);
    return;
  }
  const Keys keys{values, params};
  const half* x_rows = rows_of_block(x, kv_heads, rows);
  const int lane = threadIdx.x % WARP;
#pragma unroll 4
  for (int i = threadIdx.x; i < PAGE_TOKENS * PIECES; i += THREADS) {
    shared[i / PIECES * PITCH + i % PIECES] = key_piece(keys, work.place + i / PIECES, i % PIECES);
  }
  float of_keys[PARTS][4] = {};
  if (weights) {
#pragma unroll
    for (int j = 0; j < 4 * PARTS; j++) {
      of_keys[j / 4][j % 4] = __ldg(weights + work.place + key_of(lane, j / 4, (j & 1) + (j & 2) * 2));
    }
  }
  __syncthreads();
  for (int first = threadIdx.x / WARP * M_TILES * MMA_M; first < rows; first += WARPS * M_TILES * MMA_M) {
    const uint4* from[M_TILES];
#pragma unroll
    for (int m = 0; m < M_TILES; m++) from[m] = row_of_x(x_rows, first + m * MMA_M + fragment_row(lane), rows, HEAD_DIM);
    float acc[M_TILES][PARTS][8] = {};
#pragma unroll 4
    for (int piece = 0; piece < PIECES; piece++) {
      uint4 key[PARTS];
#pragma unroll
      for (int part = 0; part < PARTS; part++) key[part] = shared[(part * WARP + lane) * PITCH + piece];
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        const uint4 query = __ldg(from[m] + piece);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
          multiply(acc[m][part], query, reinterpret_cast<const half2(&)[4]>(key[part]));
        }
      }
    }
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int second = 0; second < 2; second++) {
        const int row = first + m * MMA_M + accumulator_row(lane, 2 * second);
        store_row(acc[m], of_keys, second, scale, row < rows,
                  out + work.result + static_cast<long long>(row) * work.pitch);
      }
    }
  }
}
