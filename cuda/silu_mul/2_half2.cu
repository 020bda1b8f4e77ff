// Idea: a thread computes two neighbours, which move as one half2, and takes the fast exponential and division.
// Removes half of the load and store instructions, and the many that an exactly rounded exp and division take.
//
// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)); a row of gate_up is [gate | up].
// BLOCKS_PER_ROW consecutive blocks compute one row.
//   INNER    elements of a row of y
//   THREADS  of a block
//   VEC      1 where INNER or an address is odd: then there are no pairs, and a thread computes one element
#if !defined(INNER) || !defined(THREADS) || !defined(VEC)
#error "silu_mul is compiled with -D INNER, THREADS and VEC"
#endif
#if INNER % VEC
#error "VEC must divide INNER"
#endif

#include "common/vector.cuh"

constexpr int WIDTH = VEC < 2 ? VEC : 2;
constexpr int BLOCKS_PER_ROW = (INNER / WIDTH + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_mul(const half* __restrict__ gate_up, half* __restrict__ y) {
  const long long row = blockIdx.x / BLOCKS_PER_ROW;
  const int i = ((blockIdx.x % BLOCKS_PER_ROW) * THREADS + threadIdx.x) * WIDTH;
  if (i >= INNER) return;
  float gate[WIDTH], up[WIDTH], out[WIDTH];
  load(gate_up + row * 2 * INNER + i, gate);
  load(gate_up + row * 2 * INNER + INNER + i, up);
#pragma unroll
  for (int j = 0; j < WIDTH; j++) out[j] = __fdividef(gate[j], 1.0f + __expf(-gate[j])) * up[j];
  store(y + row * INNER + i, out);
}
