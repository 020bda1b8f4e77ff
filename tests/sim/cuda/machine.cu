// Kernels of test_machine.py.
#include <cuda_fp16.h>
#include <cassert>
struct Pair { int a; double b; };
__constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};
__device__ int calls;
__device__ int preset[3] = {7, 8, 9};

extern "C" __global__ void all_kinds(signed char a, short b, int c, long long d, unsigned e, float f, double g, bool h,
                                     Pair p, double* o) {
    double values[] = {(double)a, (double)b, (double)c, (double)d,   (double)e,
                       (double)f, g,         (double)h, (double)p.a, p.b};
    for (int i = 0; i < 10; i++) o[i] = values[i];
}
extern "C" __global__ void copy(const float* a, float* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i] = a[i];
}
extern "C" __global__ void shift(const float* a, float* o, int by) { o[threadIdx.x] = a[(int)threadIdx.x + by]; }
extern "C" __global__ void shift_store(float* o, int by) { o[(int)threadIdx.x + by] = threadIdx.x; }
extern "C" __global__ void difference(const float* a, const float* b, long long* o) { *o = b - a; }
extern "C" __global__ void skewed(const char* a, int* o) { o[threadIdx.x] = *(const int*)(a + threadIdx.x); }
extern "C" __global__ void skewed_store(char* o) { *(short*)(o + 3 * threadIdx.x) = 1; }
extern "C" __global__ void shared_fault(int* o, int by) {
    __shared__ int s[32];
    s[threadIdx.x] = 1; __syncthreads();
    o[threadIdx.x] = ((volatile int*)s)[(int)threadIdx.x + by];
}
extern "C" __global__ void half_written(int* o) {
    __shared__ int s[64];
    if (threadIdx.x & 1) s[threadIdx.x] = 5;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void reads_output(int* o) { o[threadIdx.x] += 1; }
extern "C" __global__ void odd_only(short* o) { if (threadIdx.x & 1) o[threadIdx.x] = 5; }
extern "C" __global__ void two_barriers(int* o) {
    if (threadIdx.x < 16) { o[threadIdx.x] = 1; __syncthreads(); } else { o[threadIdx.x] = 2; __syncthreads(); }
}
extern "C" __global__ void around_barrier(int* o) {
    if (threadIdx.x < 40) { o[threadIdx.x] = 1; __syncthreads(); o[threadIdx.x] += 1; }
    o[threadIdx.x + 64] = 2;
}
extern "C" __global__ void early_return(int* o) {
    if (threadIdx.x >= 40) return;
    o[threadIdx.x] = 1; __syncthreads(); o[threadIdx.x] += 1;
}
extern "C" __global__ void stuck() { asm volatile("bar.sync 1, 128;"); }
extern "C" __global__ void half_shuffle(int* o) {
    if (threadIdx.x < 16) o[threadIdx.x] = __shfl_xor_sync(0xffffffff, (int)threadIdx.x, 1);
    else { __syncthreads(); o[threadIdx.x] = 0; }
}
extern "C" __global__ void not_in_mask(int* o) { o[threadIdx.x] = __shfl_xor_sync(0xffff, (int)threadIdx.x, 1); }
extern "C" __global__ void ended_lanes(int* o) { o[threadIdx.x] = __shfl_down_sync(0xffffffff, (int)threadIdx.x, 16); }
extern "C" __global__ void endless(volatile int* o) { while (o[0] == 0) {} o[1] = 1; }
extern "C" __global__ void traps(int* o) { o[threadIdx.x] = 1; if (threadIdx.x == 5) asm("trap;"); o[threadIdx.x] = 2; }
extern "C" __global__ void globals(float* o, int* old) {
    o[threadIdx.x] = table[threadIdx.x & 3];
    if (threadIdx.x == 0) { *old = atomicAdd(&calls, 1); old[1] = preset[1]; preset[1] = 80; }
}
extern "C" __global__ void pointers(float* const* in, float* o) { o[threadIdx.x] = in[threadIdx.x & 1][threadIdx.x]; }
extern "C" __global__ void dynamic(int* o) {
    extern __shared__ int s[];
    s[threadIdx.x] = threadIdx.x; __syncthreads(); o[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) bounded() {}
extern "C" __global__ void prints(const float* a, int n) {
    int i = threadIdx.x;
    if (i < n) printf("%d %5.2f|%-4u|%c %s %llx 100%%\n", i - 1, a[i], 7u, 'x', "text", 1ull << 40);
    if (threadIdx.x == 1) printf("plain\n");
}
extern "C" __global__ void asserts(const int* a) { assert(a[threadIdx.x] < 3); }
extern "C" __global__ void exchange(const float* mine, float* peer_slot, volatile int* peer_flag, const float* slot,
                                    volatile int* flag, float* o, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) peer_slot[i] = mine[i];
    __threadfence_system(); __syncthreads();
    if (threadIdx.x == 0) { *peer_flag = 1; while (*flag == 0) {} }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) o[i] = mine[i] + ((const volatile float*)slot)[i];
}
extern "C" __global__ void volatile_sum(const volatile int* a, int* o, int n) {
    int sum = 0;
    #pragma unroll 1
    for (int i = 0; i < n; i++) sum += a[i];
    *o = sum;
}
