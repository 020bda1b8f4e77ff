// mma.m8n8k4 with both operands as they lie when the sum runs over rows of memory: c += a^T b, as in K^T V over tokens.
#pragma once

#include "common/mma.cuh"

// c += a b over four inputs, with fp32 sums. The lane has of a four neighbouring rows, those from 4 (lane >> 4) on, of
// the input lane & 3; of b four neighbouring outputs, those from 4 (lane >> 4) on of its quad-pair's eight, of the same
// input.
__device__ __forceinline__ void mma_m8n8k4_by_columns(float (&c)[8], unsigned a0, unsigned a1, unsigned b0,
                                                      unsigned b1) {
  asm("mma.sync.aligned.m8n8k4.col.row.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
      "{%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}
