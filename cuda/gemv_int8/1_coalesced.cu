// Idea: a warp computes one output; its lanes take 16 weights of a byte each with one load.
// Removes half the bytes of the same GEMV in fp16. But an integer becomes a float at a quarter of the usual rate.
//
// y[m][n] = sum_k w[n][k] x[m][k] (+ residual[m][n]) with w = q s, for up to ROWS rows of x. Products q x are exact in
// fp32, sums are fp32; the scale multiplies the sum over a lane's 16 inputs, which lie in one group.
//   ROWS     rows of x at most: 1, 2, 4 or 8
//   GROUP    inputs that share a scale: 32, 64 or 128
//   THREADS  of a block, a multiple of 32
#if !defined(ROWS) || !defined(GROUP) || !defined(THREADS)
#error "gemv_int8 is compiled with -D ROWS, GROUP and THREADS"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr int LANE_K = 16;  // inputs of a lane in a step

extern "C" __global__ void __launch_bounds__(THREADS)
    gemv_int8(const half* __restrict__ x, const signed char* __restrict__ weight, const half* __restrict__ scales,
              const half* __restrict__ residual, half* __restrict__ y, int rows, int outputs, int inputs) {
  const int n = blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (n >= outputs) return;
  const signed char* w = weight + static_cast<long long>(n) * inputs;
  const half* s = scales + static_cast<long long>(n) * (inputs / GROUP);
  float sums[ROWS] = {};
  for (int k = lane * LANE_K; k < inputs; k += WARP * LANE_K) {
    const uint4 bits = *reinterpret_cast<const uint4*>(w + k);
    const signed char* q = reinterpret_cast<const signed char*>(&bits);
    const float scale = __half2float(s[k / GROUP]);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (m >= rows) break;
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < LANE_K; part += 8) {
        float of_x[8];
        load(x + m * inputs + k + part, of_x);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += static_cast<float>(q[part + i]) * of_x[i];
      }
      sums[m] += scale * sum;
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    if (m >= rows) break;
    const float total = warp_sum(sums[m]);
    const long long at = static_cast<long long>(m) * outputs + n;
    if (lane == 0) y[at] = __float2half_rn(total + (residual ? __half2float(residual[at]) : 0.0f));
  }
}
