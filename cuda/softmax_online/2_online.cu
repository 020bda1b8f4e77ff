// Idea: sum up relative to the maximum so far, and rescale the sum when the maximum grows (arXiv:1805.02867).
// Removes one of three readings of the row, and one of two reductions.
//
// y = exp(scale x - max) / sum(exp(scale x - max)) over a row of columns elements. One block per row. Masked elements
// may be -inf; a row of nothing else gives NaN, as in torch. The search starts at LOWEST, not at -inf, so that no
// difference of two infinities arises.
//   THREADS  of a block, a power of two
//   VEC      not used by this rung
#if !defined(THREADS) || !defined(VEC)
#error "softmax_online is compiled with -D THREADS and VEC"
#endif
#if THREADS & (THREADS - 1)
#error "The tree of this rung needs a power of two as THREADS"
#endif

constexpr float LOWEST = -3.402823466e38f;

// What some elements of a row amount to. Two of these merge into one, so threads can share a row.
struct Partial {
  float largest, sum;  // sum of exp(x - largest)
};

__device__ __forceinline__ Partial merge(Partial a, Partial b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

// One exponential is enough: of the old sum when the maximum grows, else of the new element. The price is a longer chain
// from element to element, which tells where the row lies in a cache anyway; the next rung shortens it.
__device__ __forceinline__ Partial include(Partial own, float value) {
  const float growth = value - own.largest;
  const float factor = expf(-fabsf(growth));
  return {fmaxf(own.largest, value), growth > 0.0f ? own.sum * factor + 1.0f : own.sum + factor};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_online(const float* __restrict__ x, float* __restrict__ y, int columns, float scale) {
  __shared__ Partial shared[THREADS];
  x += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  Partial own = {LOWEST, 0.0f};
  for (int i = threadIdx.x; i < columns; i += THREADS) own = include(own, x[i] * scale);
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (threadIdx.x < half_way) shared[threadIdx.x] = merge(shared[threadIdx.x], shared[threadIdx.x + half_way]);
    __syncthreads();
  }
  const Partial row = shared[0];
  for (int i = threadIdx.x; i < columns; i += THREADS) y[i] = expf(x[i] * scale - row.largest) / row.sum;
}
