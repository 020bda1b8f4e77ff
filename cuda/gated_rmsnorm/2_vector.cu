// Idea: a warp per head, which moves as one wide load of each tensor and is added up with shuffles.
// Removes all barriers, the shared memory, and three of every four load and store instructions of heads of 128.
//
// y = weight * x / sqrt(mean(x^2) + eps) * silu(gate) with silu(g) = g / (1 + exp(-g)); the mean is that of a head.
// x: fp32 [rows, heads, DIM], dense; gate: [rows, heads * DIM], rows gate_stride apart; weight: fp32 [DIM];
// y: [rows, heads * DIM], dense. Grid: (rows, a warp for each head).
//   DIM      elements of a head: 64 or 128
//   THREADS  of a block, a multiple of 32
//   VEC      elements of the gate that are loaded together, up to DIM / 32
#if !defined(DIM) || !defined(THREADS) || !defined(VEC)
#error "gated_rmsnorm is compiled with -D DIM, THREADS and VEC"
#endif
#if DIM != 64 && DIM != 128
#error "DIM is 64 or 128"
#endif

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr int PER_LANE = DIM / WARP;
constexpr int WARPS = THREADS / WARP;  // of a block, each with a head of its own

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_rmsnorm(const float* __restrict__ x, const half* __restrict__ gate, const float* __restrict__ weight,
                  half* __restrict__ y, int heads, long long gate_stride, float eps) {
  const int head = blockIdx.y * WARPS + threadIdx.x / WARP, first = threadIdx.x % WARP * PER_LANE;
  if (head >= heads) return;
  const long long row = blockIdx.x, at = (row * heads + head) * DIM + first;
  float values[PER_LANE], gates[PER_LANE], gains[PER_LANE], squares = 0.0f;
  load(x + at, values);
  const half* gates_at = gate + row * gate_stride + head * DIM + first;
#pragma unroll
  for (int i = 0; i < PER_LANE; i += VEC) load(gates_at + i, *reinterpret_cast<float(*)[VEC]>(&gates[i]));
  load(weight + first, gains);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) squares = fmaf(values[i], values[i], squares);
  const float scale = rsqrtf(warp_sum(squares) / DIM + eps);
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    values[i] *= scale * gains[i] * __fdividef(gates[i], 1.0f + __expf(-gates[i]));
  }
  store(y + at, values);
}
