// Kernels of test_schedule.py.
extern "C" __global__ void nested(const int* a, int* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], r = 0;
    for (int k = 0; k < (x & 15); k++) {
        if ((x ^ k) & 1) { r += k * x; if (k > 7) break; } else { r ^= x + k; if ((x >> 4 & 3) == 1) continue; r += 3; }
    }
    switch (x & 7) {
        case 0: r += 1; break;
        case 1: r *= 3;
        case 2: r -= 7; break;
        case 5: r = ~r; break;
        default: r ^= 0x55;
    }
    o[i] = r;
}

extern "C" __global__ void warp_sum(const int* a, int* o, int n) {   // any block size; the mask names who is there
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mask = __ballot_sync(~0u, i < n);
    if (i >= n) return;
    int s = a[i];
    int lane = threadIdx.x & 31;
    for (int d = 16; d; d >>= 1) {
        int t = __shfl_down_sync(mask, s, d);
        if (lane + d < 32 && (mask >> (lane + d)) & 1) s += t;
    }
    if ((threadIdx.x & 31) == 0) atomicAdd(o, s);
}

extern "C" __global__ void half_warps(int* o) {                       // two partners at different __syncwarp
    __shared__ int s[32];
    int i = threadIdx.x;
    if (i < 16) { s[i] = i + 100; __syncwarp(); o[i] = s[i + 16]; }
    else        { s[i] = i + 200; __syncwarp(); o[i] = s[i - 16]; }
}

// barriers in loops of unequal length
extern "C" __global__ void block_sum_loop(const int* a, int* o, const int* rounds) {
    __shared__ int s[64];
    int i = threadIdx.x, r = 0;
    for (int k = 0; k < rounds[blockIdx.x]; k++) {
        s[i] = a[(blockIdx.x * 64 + i + k) & 255];
        __syncthreads();
        r += s[63 - i];
        if (i < k) r ^= k;
        __syncthreads();
    }
    o[blockIdx.x * 64 + i] = r;
}

extern "C" __global__ void spin_lock(int* lock, volatile int* total) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *total = *total + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

extern "C" __global__ void naive_lock(int* lock, volatile int* total) { // needs independent thread scheduling
    while (atomicCAS(lock, 0, 1) != 0) {}
    *total = *total + 1;
    __threadfence();
    atomicExch(lock, 0);
}

extern "C" __global__ void relay(volatile int* flag, int* o) {          // block b waits for block b + 1
    if (threadIdx.x == 0) {
        if (blockIdx.x + 1 < gridDim.x) while (flag[blockIdx.x + 1] == 0) {}
        o[blockIdx.x] = gridDim.x - blockIdx.x + (blockIdx.x + 1 < gridDim.x ? ((volatile int*)o)[blockIdx.x + 1] : 0);
        __threadfence();
        flag[blockIdx.x] = 1;
    }
}

extern "C" __global__ void last_block(const int* a, int* partial, unsigned* ticket, int* o, int n) {
    __shared__ int s[128];
    __shared__ bool last;
    int i = threadIdx.x, sum = 0;
    for (int k = blockIdx.x * blockDim.x + i; k < n; k += gridDim.x * blockDim.x) sum += a[k];
    s[i] = sum;
    __syncthreads();
    for (int d = blockDim.x / 2; d; d >>= 1) { if (i < d) s[i] += s[i + d]; __syncthreads(); }
    if (i == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && i == 0) {
        __threadfence();
        int t = 0;
        for (int b = 0; b < gridDim.x; b++) t += ((volatile int*)partial)[b];
        *o = t;
    }
}

extern "C" __global__ void producer(const int* a, int* o, int n) {      // warp 0 fills, warp 1 drains: named barriers
    __shared__ int s[2][32];
    int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        for (int k = 0; k < n; k++) {
            if (k >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + (k & 1)) : "memory");
            s[k & 1][lane] = a[32 * k + lane];
            asm volatile("bar.arrive %0, 64;" :: "r"(1 + (k & 1)) : "memory");
        }
    } else {
        for (int k = 0; k < n; k++) {
            asm volatile("bar.sync %0, 64;" :: "r"(1 + (k & 1)) : "memory");
            o[32 * k + lane] = s[k & 1][31 - lane];
            if (k + 2 < n) asm volatile("bar.arrive %0, 64;" :: "r"(3 + (k & 1)) : "memory");
        }
    }
}

extern "C" __global__ void votes(const int* a, int* o) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i];
    int r = __syncthreads_count(x > 0);
    r = r * 4 + 2 * (__syncthreads_or(x > 100) != 0) + (__syncthreads_and(x > -100) != 0);
    if (x & 1) r += 1000;
    o[i] = r;
}

extern "C" __global__ void votes_apart(const int* a, int* o) {         // blocks reach the barrier at different times
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i], r = 0;
    for (int k = 0; k <= blockIdx.x; k++) r += __syncthreads_count(x > k);
    if (threadIdx.x < 7) r += 5;
    o[i] = r + __syncthreads_count(threadIdx.x < 7);
}
