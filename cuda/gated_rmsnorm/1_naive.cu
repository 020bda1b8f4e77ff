// Idea: a block per head, a thread per element; the squares are added up in shared memory, in pairs, in a tree.
// Removes the trips through memory between norm, silu and product, which are operations of their own in a framework.
//
// y = weight * x / sqrt(mean(x^2) + eps) * silu(gate) with silu(g) = g / (1 + exp(-g)); the mean is that of a head.
// x: fp32 [rows, heads, DIM], dense; gate: [rows, heads * DIM], rows gate_stride apart; weight: fp32 [DIM];
// y: [rows, heads * DIM], dense. Grid: (rows, heads), DIM threads.
//   DIM      elements of a head: 64 or 128
//   THREADS  not used by this rung
//   VEC      not used by this rung
#if !defined(DIM) || !defined(THREADS) || !defined(VEC)
#error "gated_rmsnorm is compiled with -D DIM, THREADS and VEC"
#endif
#if DIM != 64 && DIM != 128
#error "DIM is 64 or 128"
#endif

#include <cuda_fp16.h>

__device__ __forceinline__ float tree_sum(float value) {
  __shared__ float sums[DIM];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int half_way = DIM / 2; half_way > 0; half_way /= 2) {
    if (threadIdx.x < half_way) sums[threadIdx.x] += sums[threadIdx.x + half_way];
    __syncthreads();
  }
  return sums[0];
}

extern "C" __global__ void __launch_bounds__(DIM)
    gated_rmsnorm(const float* __restrict__ x, const half* __restrict__ gate, const float* __restrict__ weight,
                  half* __restrict__ y, int heads, long long gate_stride, float eps) {
  const long long row = blockIdx.x;
  const int column = blockIdx.y * DIM + threadIdx.x;
  const float value = x[row * heads * DIM + column], g = __half2float(gate[row * gate_stride + column]);
  const float scale = rsqrtf(tree_sum(value * value) / DIM + eps);
  y[row * heads * DIM + column] = __float2half_rn(value * scale * weight[threadIdx.x] * (g / (1.0f + expf(-g))));
}
