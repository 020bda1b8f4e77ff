// Idea: a warp computes four outputs at once; blocks share K where outputs are few.
// Removes the wait for memory (a step brings 2 KB a warp, not 512 bytes) and three of every four loads of x.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]) with w = q s, for up to ROWS rows of x; sums are fp32. The scale
// multiplies each weight here (q s is exact in fp32): one more multiplication a weight, for all rows of x together, in
// place of a second set of sums in registers.
// Block (i, j) computes outputs of i over the inputs j * slice .. (j + 1) * slice - 1; see common/split_k.cuh.
//   ROWS     rows of x at most: 1, 2, 4 or 8
//   GROUP    inputs that share a scale: 32, 64 or 128
//   THREADS  of a block, a multiple of 32
#if !defined(ROWS) || !defined(GROUP) || !defined(THREADS)
#error "gemv_int8 is compiled with -D ROWS, GROUP and THREADS"
#endif

#include "common/bytes.cuh"
#include "common/gemv.cuh"
#include "common/vector.cuh"

constexpr int OUTPUTS = 4;                    // of a warp
constexpr int LANE_K = 16;                    // inputs of a lane in a step
constexpr int STEP = WARP * LANE_K;           // inputs of a step of a warp
constexpr int UNROLL = ROWS == 1 ? 2 : 1;     // steps whose loads go out together

// sums += q s x over eight inputs for each output: those of half a lane's 16 bytes.
__device__ __forceinline__ void multiply(const uint4 (&bits)[OUTPUTS], const half (&scale)[OUTPUTS], const half* x,
                                         int inputs, int rows, int part, float (&sums)[ROWS * OUTPUTS]) {
  float w[OUTPUTS][8];
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++) {
    const unsigned* words = reinterpret_cast<const unsigned*>(&bits[o]) + 2 * part;
    float q[2][4];
    unpack_bytes(words[0], q[0]);
    unpack_bytes(words[1], q[1]);
#pragma unroll
    for (int i = 0; i < 8; i++) w[o][i] = q[i / 4][i % 4] * __half2float(scale[o]);
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    float of_x[8];
    load(x + min(m, rows - 1) * inputs + 8 * part, of_x);  // no branch: a row too many is computed and not stored
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
      for (int i = 0; i < 8; i++) sums[m * OUTPUTS + o] += w[o][i] * of_x[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_int8(const half* __restrict__ x, const signed char* __restrict__ weight, const half* __restrict__ scales,
              const half* __restrict__ residual, half* __restrict__ y, float* partials, int* arrivals, int rows,
              int outputs, int inputs, int slice) {
  const int first = (blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP) * OUTPUTS;
  const int begin = blockIdx.y * slice, end = min(begin + slice, inputs);
  float sums[ROWS * OUTPUTS] = {};
#pragma unroll UNROLL
  for (int k = begin + threadIdx.x % WARP * LANE_K; k < end; k += STEP) {
    uint4 bits[OUTPUTS];
    half scale[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
      const long long n = min(first + o, outputs - 1);
      bits[o] = *reinterpret_cast<const uint4*>(weight + n * inputs + k);
      scale[o] = scales[n * (inputs / GROUP) + k / GROUP];
    }
#pragma unroll
    for (int part = 0; part < LANE_K / 8; part++) multiply(bits, scale, x + k, inputs, rows, part, sums);
  }
  finish<OUTPUTS, ROWS>(sums, first, {residual, y, partials, arrivals, rows, outputs});
}
