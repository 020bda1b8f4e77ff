// Bitonic sort: small strides in shared memory, large ones in global memory.
#define BLOCK 128

__device__ inline void order(unsigned int &a, unsigned int &b, bool ascending) {
    if ((a > b) == ascending) {
        unsigned int t = a;
        a = b;
        b = t;
    }
}

extern "C" __global__ void sort_block(unsigned int *keys) {
    __shared__ unsigned int s[2 * BLOCK];
    unsigned int *mine = keys + blockIdx.x * 2 * BLOCK;
    s[threadIdx.x] = mine[threadIdx.x];
    s[threadIdx.x + BLOCK] = mine[threadIdx.x + BLOCK];
    for (unsigned int size = 2; size <= 2 * BLOCK; size <<= 1) {
        unsigned int number = blockIdx.x * BLOCK + threadIdx.x;
        bool ascending = (number & (size / 2)) == 0;
        for (unsigned int stride = size / 2; stride > 0; stride >>= 1) {
            __syncthreads();
            unsigned int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            order(s[i], s[i + stride], ascending);
        }
    }
    __syncthreads();
    mine[threadIdx.x] = s[threadIdx.x];
    mine[threadIdx.x + BLOCK] = s[threadIdx.x + BLOCK];
}

extern "C" __global__ void merge_global(unsigned int *keys, unsigned int size, unsigned int stride) {
    unsigned int number = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int i = 2 * number - (number & (stride - 1));
    order(keys[i], keys[i + stride], (number & (size / 2)) == 0);
}
