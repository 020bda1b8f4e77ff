// Inclusive scan in a single pass: each block waits for the running total of the block before it.
#define BLOCK 128

__device__ unsigned int next_block = 0;

extern "C" __global__ void chained_scan(const int *in, int *out, volatile int *totals, volatile int *ready, int n) {
    __shared__ int block, before, warp_totals[BLOCK / 32];
    if (threadIdx.x == 0) block = atomicAdd(&next_block, 1);  // blocks in the order in which they start
    __syncthreads();
    int i = block * BLOCK + threadIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int value = i < n ? in[i] : 0;
    for (int offset = 1; offset < 32; offset *= 2) {
        int other = __shfl_up_sync(0xffffffff, value, offset);
        if (lane >= offset) value += other;
    }
    if (lane == 31) warp_totals[warp] = value;
    __syncthreads();
    for (int w = 0; w < warp; w++) value += warp_totals[w];
    if (threadIdx.x == BLOCK - 1) {
        int total = 0;
        if (block > 0) {
            while (ready[block - 1] == 0) {
            }
            __threadfence();
            total = totals[block - 1];
        }
        before = total;
        totals[block] = total + value;
        __threadfence();
        ready[block] = 1;
    }
    __syncthreads();
    if (i < n) out[i] = value + before;
}
