// Sum, minimum and maximum of floats with warp shuffles; the last block to finish adds the partial sums.
__device__ unsigned int finished = 0;

__device__ float warp_sum(float value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffff, value, offset);
    return value;
}

__device__ float block_sum(float value) {
    __shared__ float partial[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / 32 ? partial[lane] : 0.0f;
    if (warp == 0) value = warp_sum(value);
    return value;
}

extern "C" __global__ void reduce(const float *in, float *partials, float *sum, int *extremes, int n) {
    __shared__ bool last;
    float value = 0.0f;
    int low = 0x7fffffff, high = 0x80000000;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        value += in[i];
        int whole = __float2int_rn(in[i] * 1000.0f);
        low = min(low, whole);
        high = max(high, whole);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        low = min(low, __shfl_xor_sync(0xffffffff, low, offset));
        high = max(high, __shfl_xor_sync(0xffffffff, high, offset));
    }
    if (threadIdx.x % 32 == 0) {
        atomicMin(&extremes[0], low);
        atomicMax(&extremes[1], high);
    }
    value = block_sum(value);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = value;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        float total = threadIdx.x < gridDim.x ? ((volatile float *)partials)[threadIdx.x] : 0.0f;
        total = block_sum(total);
        if (threadIdx.x == 0) *sum = total;
    }
}
