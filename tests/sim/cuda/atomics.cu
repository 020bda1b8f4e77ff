// Kernels of test_atomics.py.
#include <cuda_fp16.h>
#define OPS(T, NAME) \
extern "C" __global__ void NAME##_old(T* w, const int* at, const T* x, const T* y, T* old, int op, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i >= n) return; \
    T* p = w + at[i]; \
    T v = x[i]; \
    switch (op) { \
        case 0: old[i] = atomicAdd(p, v); break; \
        case 1: old[i] = atomicMin(p, v); break; \
        case 2: old[i] = atomicMax(p, v); break; \
        case 3: old[i] = atomicAnd(p, v); break; \
        case 4: old[i] = atomicOr(p, v); break; \
        case 5: old[i] = atomicXor(p, v); break; \
        case 6: old[i] = atomicExch(p, v); break; \
        case 7: old[i] = atomicCAS(p, v, y[i]); break; \
    } \
} \
extern "C" __global__ void NAME##_red(T* w, const int* at, const T* x, int op, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i >= n) return; \
    T* p = w + at[i]; \
    T v = x[i]; \
    switch (op) { \
        case 0: atomicAdd(p, v); break; \
        case 1: atomicMin(p, v); break; \
        case 2: atomicMax(p, v); break; \
        case 3: atomicAnd(p, v); break; \
        case 4: atomicOr(p, v); break; \
        case 5: atomicXor(p, v); break; \
    } \
}
OPS(int, s32)
OPS(unsigned, u32)
OPS(unsigned long long, u64)
extern "C" __global__ void wrap(unsigned* w, const int* at, const unsigned* x, unsigned* old, int n) {
    int i = threadIdx.x; if (i >= n) return;
    old[i] = i & 1 ? atomicInc(w + at[i], x[i]) : atomicDec(w + at[i], x[i]);
}
extern "C" __global__ void floats(float* w, double* d, __half2* h, const int* at, const float* x, float* old, int n) {
    int i = threadIdx.x; if (i >= n) return;
    old[i] = atomicAdd(w + at[i], x[i]);
    atomicAdd(d + at[i], (double)x[i]);
    atomicAdd(h + at[i], __floats2half2_rn(x[i], 2 * x[i]));
    atomicAdd(w + 8 + at[i], x[i]);
}
extern "C" __global__ void histogram(const unsigned char* a, int* o, int n) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) atomicAdd(&bins[a[i] & 15], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(o + threadIdx.x, bins[threadIdx.x]);
}
extern "C" __global__ void aggregated(const int* keys, int* counts, int* slot, int n) {  // one atomic per warp and key
    int i = threadIdx.x; if (i >= n) return;
    unsigned active = __activemask(), peers = __match_any_sync(active, keys[i]);
    int leader = __ffs(peers) - 1, rank = __popc(peers & ((1u << (i & 31)) - 1)), base = 0;
    if (rank == 0) base = atomicAdd(counts + keys[i], __popc(peers));
    slot[i] = __shfl_sync(peers, base, leader) + rank;
}
extern "C" __global__ void float_max(float* o, const float* x, int n) {                  // a loop around atomicCAS
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
    int* p = (int*)o; int old = *(volatile int*)p;
    while (__int_as_float(old) < x[i]) {
        int seen = atomicCAS(p, old, __float_as_int(x[i]));
        if (seen == old) break;
        old = seen;
    }
}
extern "C" __global__ void uninit(int* o) { __shared__ int s[32]; o[threadIdx.x] = atomicAdd(&s[threadIdx.x & 7], 1); }
extern "C" __global__ void far(int* o, int by) { atomicAdd(o + threadIdx.x + by, 1); }
