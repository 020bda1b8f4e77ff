// Word counts in a hash table with linear probing; 64-bit entries hold a key and its count.
#define EMPTY 0xffffffffffffffffull

extern "C" __global__ void insert(const unsigned int *keys, unsigned long long *table, int slots, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned int key = keys[i], slot = key * 2654435761u % slots;
    while (true) {
        unsigned long long seen = table[slot];
        if (seen == EMPTY) {
            seen = atomicCAS(&table[slot], EMPTY, (unsigned long long)key << 32 | 1);
            if (seen == EMPTY) return;
        }
        if (seen >> 32 == key) {
            atomicAdd(&table[slot], 1ull);
            return;
        }
        slot = (slot + 1) % slots;
    }
}

__device__ float atomic_max(float *address, float value) {
    int *as_int = (int *)address, old = *as_int, assumed;
    do {
        assumed = old;
        old = atomicCAS(as_int, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
    } while (assumed != old);
    return __int_as_float(old);
}

extern "C" __global__ void largest(const unsigned int *keys, float *result, double *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomic_max(result, (float)keys[i]);
        atomicAdd(sum, (double)keys[i]);
    }
}
