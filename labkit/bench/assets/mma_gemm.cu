// c = a * b on the V100's tensor cores: a is m x k, b is k x n, c is m x n, halfs, row-major; sums in fp32.
//
// A block of four warps makes 64 x 64 of c; the next 32 columns of a and rows of b are loaded while the present ones are
// multiplied. A warp makes 32 x 32: each of its mma instructions works on four 8 x 8 x 4 products, one per quad pair.
#include <cuda_fp16.h>

constexpr int TILE = 64, DEPTH = 32, PITCH_A = DEPTH + 8, PITCH_B = TILE + 8;

__device__ __forceinline__ void multiply(float (&d)[8], uint2 a, uint2 b) {
  asm("mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
      "{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
}

extern "C" __global__ void __launch_bounds__(128)
    mma_gemm(const half* __restrict__ a, const half* __restrict__ b, half* __restrict__ c, int n, int k) {
  __shared__ __align__(16) half tile_a[2][TILE][PITCH_A], tile_b[2][DEPTH][PITCH_B];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE, warp_row = warp % 2 * 32, warp_column = warp / 2 * 32;
  const int pair = lane / 4 % 4, upper = lane / 16;  // quad pair; its second half of four lanes
  float sums[2][2][8] = {};
  uint4 next_a[2], next_b[2];

  const auto load = [&](int depth) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = thread / 4 + 32 * i, line = thread / 8 + 16 * i;
      next_a[i] = *reinterpret_cast<const uint4*>(a + (row0 + row) * k + depth + thread % 4 * 8);
      next_b[i] = *reinterpret_cast<const uint4*>(b + (depth + line) * n + column0 + thread % 8 * 8);
    }
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      *reinterpret_cast<uint4*>(&tile_a[buffer][thread / 4 + 32 * i][thread % 4 * 8]) = next_a[i];
      *reinterpret_cast<uint4*>(&tile_b[buffer][thread / 8 + 16 * i][thread % 8 * 8]) = next_b[i];
    }
  };

  load(0);
  store(0);
  __syncthreads();
  for (int depth = 0; depth < k; depth += DEPTH) {
    const int buffer = depth / DEPTH % 2;
    const bool more = depth + DEPTH < k;
    if (more) load(depth + DEPTH);
#pragma unroll
    for (int step = 0; step < DEPTH; step += 4) {
      uint2 left[2], right[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = warp_row + 16 * i + pair % 2 * 8 + lane % 4 + 4 * upper;
        const int column = warp_column + 16 * i + pair / 2 * 8 + 4 * upper;
        left[i] = *reinterpret_cast<const uint2*>(&tile_a[buffer][row][step]);
        right[i] = *reinterpret_cast<const uint2*>(&tile_b[buffer][step + lane % 4][column]);
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) multiply(sums[i][j], left[i], right[j]);
    }
    if (more) store(buffer ^ 1);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const int row = row0 + warp_row + 16 * i + pair % 2 * 8 + lane % 2 + (e & 2) + 4 * upper;
        const int column = column0 + warp_column + 16 * j + pair / 2 * 8 + (e & 4) + (lane & 2);
        *reinterpret_cast<half2*>(c + row * n + column) = __floats2half2_rn(sums[i][j][e], sums[i][j][e + 1]);
      }
}
