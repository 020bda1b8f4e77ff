// Idea: a thread moves 16 bytes with one instruction, and keeps its part of the row in registers.
// Removes the second reading of the row, and seven of every eight load and store instructions.
//
// y = x / sqrt(mean(x^2) + eps) * weight, and before that x += residual in add_rmsnorm. One block per row.
//   HIDDEN         elements of a row
//   THREADS        of a block, a multiple of 32
//   VEC            elements that move together: 8, or fewer where HIDDEN or an address is no multiple of 8
//   ZERO_CENTERED  1: the weight is stored as its distance from 1
#if !defined(HIDDEN) || !defined(THREADS) || !defined(VEC) || !defined(ZERO_CENTERED)
#error "rmsnorm is compiled with -D HIDDEN, THREADS, VEC and ZERO_CENTERED"
#endif
#if HIDDEN % VEC
#error "VEC must divide HIDDEN"
#endif
#if HIDDEN > 32 * THREADS
#error "A thread keeps at most 32 elements of its row: use more THREADS"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr int STRIDE = THREADS * VEC;                       // elements that the block moves together
constexpr int PACKS = (HIDDEN + STRIDE - 1) / STRIDE;       // of VEC elements, per thread

// values: the thread's packs of the row, whose squares sum up to squares.
__device__ __forceinline__ void normalise(const float (&values)[PACKS][VEC], const float* weight, half* y,
                                          float squares, float eps) {
  const float scale = rsqrtf(block_sum<THREADS>(squares) / HIDDEN + eps);
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int i = p * STRIDE + threadIdx.x * VEC;
    if (i >= HIDDEN) break;
    float gains[VEC], out[VEC];
    load(weight + i, gains);
#pragma unroll
    for (int j = 0; j < VEC; j++) out[j] = values[p][j] * scale * (ZERO_CENTERED ? 1.0f + gains[j] : gains[j]);
    store(y + i, out);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm(const half* __restrict__ x, const float* __restrict__ weight, half* __restrict__ y, float eps) {
  const long long start = static_cast<long long>(blockIdx.x) * HIDDEN;
  float values[PACKS][VEC];
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int i = p * STRIDE + threadIdx.x * VEC;
    if (i >= HIDDEN) break;
    load(x + start + i, values[p]);
#pragma unroll
    for (int j = 0; j < VEC; j++) squares += values[p][j] * values[p][j];
  }
  normalise(values, weight, y + start, squares, eps);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    add_rmsnorm(half* __restrict__ x, const half* __restrict__ residual, const float* __restrict__ weight,
                half* __restrict__ y, float eps) {
  const long long start = static_cast<long long>(blockIdx.x) * HIDDEN;
  float values[PACKS][VEC];
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < PACKS; p++) {
    const int i = p * STRIDE + threadIdx.x * VEC;
    if (i >= HIDDEN) break;
    float added[VEC];
    load(x + start + i, values[p]);
    load(residual + start + i, added);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      // The norm is that of the sum as stored, rounded to half: whoever reads x later sees the same numbers.
      values[p][j] = __half2float(__float2half_rn(values[p][j] + added[j]));
      squares += values[p][j] * values[p][j];
    }
    store(x + start + i, values[p]);
  }
  normalise(values, weight, y + start, squares, eps);
}
