// Idea: as written in the formula: find the maximum, then sum up the exponentials, then divide.
// Removes nothing yet: this is the safe softmax to compare with, three readings of the row.
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
#error "The trees of this rung need a power of two as THREADS"
#endif

constexpr float LOWEST = -3.402823466e38f;

// The maximum (or the sum) of the values of all threads, in shared memory that is free again at the end.
template <bool MAXIMUM>
__device__ __forceinline__ float tree(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half_way = THREADS / 2; half_way > 0; half_way /= 2) {
    if (threadIdx.x < half_way) {
      const float a = shared[threadIdx.x], b = shared[threadIdx.x + half_way];
      shared[threadIdx.x] = MAXIMUM ? fmaxf(a, b) : a + b;
    }
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_online(const float* __restrict__ x, float* __restrict__ y, int columns, float scale) {
  __shared__ float shared[THREADS];
  x += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  float largest = LOWEST;
  for (int i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, x[i] * scale);
  largest = tree<true>(largest, shared);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += expf(x[i] * scale - largest);
  sum = tree<false>(sum, shared);
  for (int i = threadIdx.x; i < columns; i += THREADS) y[i] = expf(x[i] * scale - largest) / sum;
}
