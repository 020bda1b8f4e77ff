// Idea: a thread computes eight neighbours, which move as 16 bytes.
// Removes three of every four load and store instructions of the pairs, and keeps more bytes on their way at once.
//
// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)); a row of gate_up is [gate | up].
// BLOCKS_PER_ROW consecutive blocks compute one row.
//   INNER    elements of a row of y
//   THREADS  of a block
//   VEC      elements of a thread: 8, or fewer where INNER or an address is no multiple of 8
#if !defined(INNER) || !defined(THREADS) || !defined(VEC)
#error "silu_mul is compiled with -D INNER, THREADS and VEC"
#endif
#if INNER % VEC
#error "VEC must divide INNER"
#endif

#include "common/vector.cuh"

constexpr int BLOCKS_PER_ROW = (INNER / VEC + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
    silu_mul(const half* __restrict__ gate_up, half* __restrict__ y) {
  const long long row = blockIdx.x / BLOCKS_PER_ROW;
  const int i = ((blockIdx.x % BLOCKS_PER_ROW) * THREADS + threadIdx.x) * VEC;
  if (i >= INNER) return;
  float gate[VEC], up[VEC], out[VEC];
  load(gate_up + row * 2 * INNER + i, gate);
  load(gate_up + row * 2 * INNER + INNER + i, up);
#pragma unroll
  for (int j = 0; j < VEC; j++) out[j] = __fdividef(gate[j], 1.0f + __expf(-gate[j])) * up[j];
  store(y + row * INNER + i, out);
}
