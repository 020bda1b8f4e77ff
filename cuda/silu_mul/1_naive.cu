// Idea: a thread per output element; its neighbours in the warp read the neighbouring elements.
// Removes the second trip through memory that silu and the product would make as two operations.
//
// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)); a row of gate_up is [gate | up].
// BLOCKS_PER_ROW consecutive blocks compute one row.
//   INNER    elements of a row of y
//   THREADS  of a block
//   VEC      not used by this rung
#if !defined(INNER) || !defined(THREADS) || !defined(VEC)
#error "silu_mul is compiled with -D INNER, THREADS and VEC"
#endif

#include <cuda_fp16.h>

constexpr int BLOCKS_PER_ROW = (INNER + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_mul(const half* __restrict__ gate_up, half* __restrict__ y) {
  const long long row = blockIdx.x / BLOCKS_PER_ROW;
  const int i = (blockIdx.x % BLOCKS_PER_ROW) * THREADS + threadIdx.x;
  if (i >= INNER) return;
  const float gate = __half2float(gate_up[row * 2 * INNER + i]);
  const float up = __half2float(gate_up[row * 2 * INNER + INNER + i]);
  y[row * INNER + i] = __float2half_rn(gate / (1.0f + expf(-gate)) * up);
}
