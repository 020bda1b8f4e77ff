// LayerNorm of half-precision rows: half2 loads, fp32 sums, one block a row.
#include <cuda_fp16.h>

__device__ float sum_block(float value, float *partial) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(0xffffffff, value, mask);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
    __syncthreads();
    float total = 0.0f;
    for (int w = 0; w < blockDim.x / 32; w++) total += partial[w];
    __syncthreads();
    return total;
}

extern "C" __global__ void layernorm(const half2 *x, const half2 *gain, const half2 *bias, half2 *y, int pairs, float eps) {
    __shared__ float partial[32];
    const half2 *row = x + (size_t)blockIdx.x * pairs;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        float2 v = __half22float2(row[i]);
        sum += v.x + v.y;
    }
    float mean = sum_block(sum, partial) / (2 * pairs);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        float2 v = __half22float2(row[i]);
        squares += (v.x - mean) * (v.x - mean) + (v.y - mean) * (v.y - mean);
    }
    float scale = rsqrtf(sum_block(squares, partial) / (2 * pairs) + eps);
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        float2 v = __half22float2(row[i]);
        half2 normal = __floats2half2_rn((v.x - mean) * scale, (v.y - mean) * scale);
        y[(size_t)blockIdx.x * pairs + i] = __hfma2(normal, gain[i], bias[i]);
    }
}
