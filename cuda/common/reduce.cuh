// Sums and maxima over the 32 lanes of a warp and over the threads of a block.
#pragma once

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Butterfly: after step k every lane holds the result of 2^k lanes, after five steps that of the warp.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
  }
  return value;
}

// The sum over all threads, known to all of them, for one barrier: each warp leaves its sum in shared memory, and
// each adds up all that it finds there. Every thread of the block must call it, and only once in a kernel: a second
// call would need another barrier, before a fast warp overwrites what a slow one still reads.
template <int BLOCK_SIZE>  // not THREADS: that is a macro
__device__ __forceinline__ float block_sum(float value) {
  static_assert(BLOCK_SIZE % WARP == 0 && BLOCK_SIZE <= WARP * WARP, "THREADS is a multiple of 32, at most 1024");
  constexpr int WARPS = BLOCK_SIZE / WARP;
  const int lane = threadIdx.x % WARP;
  value = warp_sum(value);
  if constexpr (WARPS > 1) {
    __shared__ float sums[WARPS];
    if (lane == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    value = warp_sum(lane < WARPS ? sums[lane] : 0.0f);
  }
  return value;
}
