// Loads and stores of N neighbouring elements with one instruction (16 bytes at most), computed with in fp32.
// The address must be a multiple of what is moved.
#pragma once

#include <cuda_fp16.h>

template <int BYTES>
struct Moved;
template <>
struct Moved<2> {
  using type = unsigned short;
};
template <>
struct Moved<4> {
  using type = unsigned int;
};
template <>
struct Moved<8> {
  using type = uint2;
};
template <>
struct Moved<16> {
  using type = uint4;
};

// N halves as they are, for copies.
template <int N>
using HalfBits = typename Moved<2 * N>::type;

template <int N>
__device__ __forceinline__ void copy(half* to, const half* from) {
  *reinterpret_cast<HalfBits<N>*>(to) = *reinterpret_cast<const HalfBits<N>*>(from);
}

template <int N>
__device__ __forceinline__ void clear(half* to) {
  *reinterpret_cast<HalfBits<N>*>(to) = HalfBits<N>{};
}

template <int N>
__device__ __forceinline__ void load(const half* from, float (&to)[N]) {
  const HalfBits<N> bits = *reinterpret_cast<const HalfBits<N>*>(from);
  const half* halves = reinterpret_cast<const half*>(&bits);
#pragma unroll
  for (int i = 0; i < N; i++) to[i] = __half2float(halves[i]);
}

template <int N>
__device__ __forceinline__ void store(half* to, const float (&from)[N]) {
  HalfBits<N> bits;
  half* halves = reinterpret_cast<half*>(&bits);
#pragma unroll
  for (int i = 0; i < N; i++) halves[i] = __float2half_rn(from[i]);
  *reinterpret_cast<HalfBits<N>*>(to) = bits;
}

// Eight floats are two instructions.
template <int N>
__device__ __forceinline__ void load(const float* from, float (&to)[N]) {
  constexpr int STEP = N < 4 ? N : 4;
  using Bits = typename Moved<4 * STEP>::type;
#pragma unroll
  for (int i = 0; i < N; i += STEP) {
    const Bits bits = *reinterpret_cast<const Bits*>(from + i);
#pragma unroll
    for (int j = 0; j < STEP; j++) to[i + j] = reinterpret_cast<const float*>(&bits)[j];
  }
}

template <int N>
__device__ __forceinline__ void store(float* to, const float (&from)[N]) {
  constexpr int STEP = N < 4 ? N : 4;
  using Bits = typename Moved<4 * STEP>::type;
#pragma unroll
  for (int i = 0; i < N; i += STEP) {
    Bits bits;
#pragma unroll
    for (int j = 0; j < STEP; j++) reinterpret_cast<float*>(&bits)[j] = from[i + j];
    *reinterpret_cast<Bits*>(to + i) = bits;
  }
}
