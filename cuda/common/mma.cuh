// The tensor cores of SM70. One mma.m8n8k4 of a warp is four products of 8 x 4 by 4 x 8, one for each quad-pair q: the
// lanes 4 q .. 4 q + 3 and 16 + 4 q .. 16 + 4 q + 3 (PTX ISA, "Matrix fragments for mma.m8n8k4"). Here the quad-pairs
// lie side by side along the outputs and share their rows: 8 rows of x by a tile of 32 outputs of w, whose layout is
// that of labkit/quant/pack.py.
#pragma once

#include <cuda_fp16.h>

#include "common/quant.cuh"
#include "common/reduce.cuh"

constexpr int MMA_M = 8;       // rows of x in one product
constexpr int FRAGMENT_K = 8;  // inputs of x that a lane has with one 16-byte load: those of two mma

// The row of x whose inputs a lane holds.
__device__ __forceinline__ int fragment_row(int lane) { return (lane & 3) + 4 * (lane >> 4); }

// Where a lane's accumulator i lies in the product of 8 rows by 32 outputs.
__device__ __forceinline__ int accumulator_row(int lane, int i) { return (lane & 1) + (i & 2) + 4 * (lane >> 4); }
__device__ __forceinline__ int accumulator_column(int lane, int i) {
  return 8 * ((lane >> 2) & 3) + (lane & 2) + (i & 4) + (i & 1);
}

__device__ __forceinline__ unsigned bits_of(half2 pair) { return *reinterpret_cast<const unsigned*>(&pair); }

// c += a b over four inputs, with fp32 sums.
__device__ __forceinline__ void mma_m8n8k4(float (&c)[8], unsigned a0, unsigned a1, half2 b0, half2 b1) {
  asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(bits_of(b0)), "r"(bits_of(b1)));
}

// The same with a b that lies by rows: the lane has four neighbouring outputs, those from 4 (lane >> 4) on of its
// quad-pair's eight, of the input lane & 3.
__device__ __forceinline__ void mma_m8n8k4_by_rows(float (&c)[8], unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

// c += x w over the eight inputs of a word: x of the lane's row, w of its output.
__device__ __forceinline__ void multiply(float (&c)[8], const uint4& x, const half2 (&w)[4]) {
  mma_m8n8k4(c, x.x, x.y, w[0], w[1]);
  mma_m8n8k4(c, x.z, x.w, w[2], w[3]);
}

// The same with both operands as they were loaded.
__device__ __forceinline__ void multiply(float (&c)[8], const uint4& x, const uint4& w) {
  multiply(c, x, reinterpret_cast<const half2(&)[4]>(w));
}

// Word j of a chunk; j is known when the kernel is compiled.
__device__ __forceinline__ unsigned word_of(const uint4& chunk, int j) {
  return reinterpret_cast<const unsigned*>(&chunk)[j];
}

// The inputs of a row of x [rows, inputs], 16 bytes at a time. Past the last row it is given once more: an accumulator
// depends on its own row of x only, and what lies past the last row is not stored.
__device__ __forceinline__ const uint4* row_of_x(const half* x, int row, int rows, int inputs) {
  return reinterpret_cast<const uint4*>(x + static_cast<long long>(min(row, rows - 1)) * inputs);
}

// Rounds a warp's product to halves and stores what lies inside y [rows, outputs], from (row, column) on. Lanes l and
// l ^ 2 trade pairs, so that each has four neighbours: a row's 32 outputs then go out as 64 bytes side by side.
__device__ __forceinline__ void store_product(const float (&c)[8], half* y, int row, int column, int rows,
                                              int outputs) {
  const int lane = threadIdx.x % WARP;
  const bool upper = lane & 2;
  const int first = column + accumulator_column(lane & ~2, 0) + (upper ? 4 : 0);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const half2 near = __floats2half2_rn(c[i], c[i + 1]), far = __floats2half2_rn(c[i + 4], c[i + 5]);
    const unsigned traded = __shfl_xor_sync(ALL_LANES, bits_of(upper ? near : far), 2);
    const uint2 four = upper ? make_uint2(traded, bits_of(far)) : make_uint2(bits_of(near), traded);
    const int to_row = row + accumulator_row(lane, i);
    if (to_row >= rows) continue;
    half* to = y + static_cast<long long>(to_row) * outputs + first;
    if (outputs % 4 == 0) {
      if (first < outputs) *reinterpret_cast<uint2*>(to) = four;
    } else {
      const half* halves = reinterpret_cast<const half*>(&four);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (first + j < outputs) to[j] = halves[j];
      }
    }
  }
}
