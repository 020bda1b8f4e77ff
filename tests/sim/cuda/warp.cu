// Kernels of test_warp.py.
#define SHUFFLE(MODE) \
extern "C" __global__ void MODE##_varying(const unsigned* a, const int* b, const int* c, unsigned* o, int* p) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; unsigned v; int q; \
    asm volatile("{.reg .pred t; shfl.sync." #MODE ".b32 %0|t, %2, %3, %4, 0xffffffff; selp.s32 %1, 1, 0, t;}" \
        : "=r"(v), "=r"(q) : "r"(a[i]), "r"(b[i]), "r"(c[i])); o[i] = v; p[i] = q; }
SHUFFLE(up)
SHUFFLE(down)
SHUFFLE(bfly)
SHUFFLE(idx)
extern "C" __global__ void fixed(const int* a, int* o) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, x = a[i], n = gridDim.x * blockDim.x;
    o[i] = __shfl_up_sync(~0u, x, 3);
    o[n + i] = __shfl_down_sync(~0u, x, 5, 16);
    o[2 * n + i] = __shfl_xor_sync(~0u, x, 9);
    o[3 * n + i] = __shfl_sync(~0u, x, 6, 8); o[4 * n + i] = __shfl_sync(~0u, (int)blockIdx.x, 6);
    o[5 * n + i] = __shfl_xor_sync(~0u, 7, 1);
}
extern "C" __global__ void ballots(const int* a, unsigned* o, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x, lane = threadIdx.x & 31;
    if (lane < limit) {
        unsigned m = limit == 32 ? 0xffffffffu : (1u << limit) - 1;
        o[i] = __ballot_sync(m, a[i] > 0); o[n + i] = __any_sync(m, a[i] > 2); o[2 * n + i] = __all_sync(m, a[i] > -3);
        asm volatile("{.reg .pred p, q; setp.gt.s32 p, %1, 0; vote.sync.uni.pred q, p, %2; selp.u32 %0, 1, 0, q;}"
                     : "=r"(o[3 * n + i]) : "r"(a[i]), "r"(m));
        o[4 * n + i] = __match_any_sync(m, a[i]); int p; o[5 * n + i] = __match_all_sync(m, a[i] > -9, &p) + p;
        o[6 * n + i] = __activemask(); o[7 * n + i] = __match_any_sync(m, (long long)a[i] << 33);
        o[8 * n + i] = __ballot_sync(m, blockIdx.x & 1);
    }
}
extern "C" __global__ void teams(const int* a, unsigned* o) {      // lanes of one warp with different masks at once
    int lane = threadIdx.x & 31, i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned team = __match_any_sync(~0u, a[i] & 3);
    o[i] = __ballot_sync(team, a[i] > 4) ^ (__all_sync(team, a[i] > 1) << 7);
    if (lane & 1) o[i] += __popc(__ballot_sync(0xaaaaaaaau, a[i] > 2));
    else o[i] += 100 * __popc(__ballot_sync(0x55555555u, a[i] > 3));
}
extern "C" __global__ void special(unsigned* o) {
    unsigned v[8]; int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    asm("mov.u32 %0, %%laneid;" : "=r"(v[0])); asm("mov.u32 %0, %%lanemask_lt;" : "=r"(v[1]));
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(v[2])); asm("mov.u32 %0, %%warpid;" : "=r"(v[3]));
    asm("mov.u32 %0, %%nwarpid;" : "=r"(v[4])); asm("mov.u32 %0, %%lanemask_eq;" : "=r"(v[5]));
    asm("mov.u32 %0, %%lanemask_le;" : "=r"(v[6])); asm("mov.u32 %0, %%lanemask_gt;" : "=r"(v[7]));
    for (int k = 0; k < 8; k++) o[k * n + i] = v[k];
}
extern "C" __global__ void coordinates(int* o) {
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), n = blockDim.x * blockDim.y * blockDim.z;
    int* p = o + (b * n + t) * 6;
    p[0] = threadIdx.x; p[1] = threadIdx.y; p[2] = threadIdx.z; p[3] = blockIdx.x; p[4] = blockIdx.y; p[5] = blockIdx.z;
}
