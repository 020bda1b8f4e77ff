// INT4 weights as labkit/quant/pack.py lays them out: where a lane finds its nibbles, and how they become halves.
#pragma once

#include <cuda_fp16.h>

constexpr int TILE_N = 32;  // outputs of a tile, one a lane
constexpr int CHUNK_K = 32;  // inputs that a lane loads with 16 bytes

// The output of lane l within its tile: the column of B that mma.m8n8k4 wants from it, quad-pairs side by side.
__device__ __forceinline__ int lane_column(int lane) { return 8 * ((lane >> 2) & 3) + (lane & 3) + 4 * (lane >> 4); }

// One group of one tile: 32 pairs (scale, zero or bias), then SIZE / 32 chunks of 16 bytes a lane.
template <int SIZE>  // not GROUP: that is a macro
struct PackedGroup {
  half2 pairs[TILE_N];
  uint4 chunks[SIZE / CHUNK_K][TILE_N];
};

// The magic number: 0x6400 is 1024 in half, whose last mantissa bit is worth 1. With a nibble q in the low bits it is
// 1024 + q, with q in bits 4 to 7 it is 1024 + 16 q; both exactly. One lop3 masks and joins.
__device__ __forceinline__ half2 magic(unsigned word, unsigned mask) {
  unsigned bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(word), "r"(mask), "r"(0x64006400u));  // (word & mask) | magic
  return *reinterpret_cast<half2*>(&bits);
}

// What the magic numbers of a group have too much, given its zero point (0 for plain q): whole numbers, so exact.
struct Offsets {
  half2 low, high;  // 1024 + z and -(64 + z), twice
  __device__ __forceinline__ explicit Offsets(half zero)
      : low(__half2half2(__hadd(__float2half(1024.0f), zero))),
        high(__half2half2(__hneg(__hadd(__float2half(64.0f), zero)))) {}
};

// q - z of the eight inputs of a word, in their order, two to a register; exact for every whole z from 0 to 16.
__device__ __forceinline__ void unpack_word(unsigned word, const Offsets& offsets, half2 (&out)[4]) {
  const half2 sixteenth = __float2half2_rn(0.0625f);
  out[0] = __hsub2(magic(word, 0x000f000fu), offsets.low);
  out[1] = __hfma2(magic(word, 0x00f000f0u), sixteenth, offsets.high);
  out[2] = __hsub2(magic(word >> 8, 0x000f000fu), offsets.low);
  out[3] = __hfma2(magic(word >> 8, 0x00f000f0u), sixteenth, offsets.high);
}
