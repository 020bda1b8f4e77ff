// One pass of a stable radix sort over a 4-bit digit: count, scan the counts, scatter.
#define BLOCK 128
#define RADIX 16

extern "C" __global__ void count(const unsigned int *keys, unsigned int *counts, int shift, int n) {
    __shared__ unsigned int bins[RADIX];
    if (threadIdx.x < RADIX) bins[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&bins[(keys[i] >> shift) & (RADIX - 1)], 1u);
    __syncthreads();
    if (threadIdx.x < RADIX) counts[threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

extern "C" __global__ void scan_counts(unsigned int *counts, int n) {  // one block, Hillis and Steele
    __shared__ unsigned int buffer[2][1024];
    int t = threadIdx.x, from = 0;
    buffer[0][t] = t < n ? counts[t] : 0;
    __syncthreads();
    for (int offset = 1; offset < blockDim.x; offset *= 2) {
        buffer[1 - from][t] = buffer[from][t] + (t >= offset ? buffer[from][t - offset] : 0);
        from = 1 - from;
        __syncthreads();
    }
    if (t < n) counts[t] = t > 0 ? buffer[from][t - 1] : 0;
}

extern "C" __global__ void scatter(const unsigned int *keys, unsigned int *out, const unsigned int *offsets, int shift, int n) {
    __shared__ unsigned int warp_counts[BLOCK / 32][RADIX];
    int i = blockIdx.x * BLOCK + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int d = lane; d < RADIX; d += 32) warp_counts[warp][d] = 0;
    __syncwarp();
    bool valid = i < n;
    unsigned int key = valid ? keys[i] : 0xffffffffu;
    unsigned int digit = valid ? (key >> shift) & (RADIX - 1) : RADIX;
    unsigned int peers = __match_any_sync(0xffffffffu, digit);
    unsigned int rank = __popc(peers & ((1u << lane) - 1));
    if (valid && rank == 0) warp_counts[warp][digit] = __popc(peers);
    __syncthreads();
    if (!valid) return;
    for (int w = 0; w < warp; w++) rank += warp_counts[w][digit];
    out[offsets[digit * gridDim.x + blockIdx.x] + rank] = key;
}
