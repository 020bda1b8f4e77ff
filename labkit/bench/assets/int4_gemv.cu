// y[n] = sum over k of x[k] * w[k][n], with 4-bit weights: w = (q - zero) * scale, in groups of 128 along k.
//
// weights: [k][n / 8] words of eight nibbles; zeros: [k / 128][n / 8] likewise; scales: [k / 128][n] halfs.
// One block makes 64 columns: a thread unpacks 8 of them and walks over every 32nd of the block's pieces of k.
#include <cuda_fp16.h>

constexpr int COLUMNS = 8, SLICES = 32, GROUP = 128;

// The nibbles of a word as halfs 1024 ... 1039, two by two: the bits of 1024 + q are 0x6400 | q. The difference of a
// weight and its zero is exact, so the 1024 need not be taken off before.
__device__ __forceinline__ void unpack(unsigned word, half2 (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned bits = ((word >> (4 * i)) & 0x000f000f) | 0x64006400;
    values[i] = *reinterpret_cast<const half2*>(&bits);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    int4_gemv(const half* __restrict__ x, const unsigned* __restrict__ weights, const unsigned* __restrict__ zeros,
              const half* __restrict__ scales, half* __restrict__ y, int n, int k) {
  __shared__ float partial[SLICES][64];
  const int piece = threadIdx.x % 8, slice = threadIdx.x / 8, column = blockIdx.x * 8 + piece, words = n / 8;
  const int length = k / SLICES, start = slice * length, group = start / GROUP;
  half2 zero[4], sum[4];
  unpack(zeros[group * words + column], zero);
#pragma unroll
  for (int i = 0; i < 4; i++) sum[i] = __float2half2_rn(0.0f);
#pragma unroll 4
  for (int row = start; row < start + length; row++) {
    half2 q[4];
    unpack(weights[row * words + column], q);
    const half2 factor = __half2half2(x[row]);
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = __hfma2(factor, __hsub2(q[i], zero[i]), sum[i]);
  }
  const half* scale = scales + group * n + column * COLUMNS;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    partial[slice][piece * COLUMNS + i] = __low2float(sum[i]) * __half2float(scale[i]);
    partial[slice][piece * COLUMNS + i + 4] = __high2float(sum[i]) * __half2float(scale[i + 4]);
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++) total += partial[i][threadIdx.x];
    y[blockIdx.x * 64 + threadIdx.x] = __float2half_rn(total);
  }
}
