// Causal attention with an online softmax: a warp a query, keys and values in tiles.
#define D 64
#define TILE 16
#define WARPS 4

extern "C" __global__ void attention(const float *q, const float *k, const float *v, float *out, int length, float scale) {
    __shared__ float ks[TILE][D], vs[TILE][D];
    int lane = threadIdx.x, warp = threadIdx.y, query = blockIdx.x * WARPS + warp;
    int last = min(length, (blockIdx.x + 1) * WARPS);
    float q0 = query < length ? q[query * D + lane] * scale : 0.0f;
    float q1 = query < length ? q[query * D + lane + 32] * scale : 0.0f;
    float highest = -1e30f, sum = 0.0f, o0 = 0.0f, o1 = 0.0f;
    for (int start = 0; start < last; start += TILE) {
        __syncthreads();
        for (int i = warp; i < TILE; i += WARPS)
            for (int d = lane; d < D; d += 32) {
                bool inside = start + i < length;
                ks[i][d] = inside ? k[(start + i) * D + d] : 0.0f;
                vs[i][d] = inside ? v[(start + i) * D + d] : 0.0f;
            }
        __syncthreads();
        if (query >= length) continue;
        for (int i = 0; i < TILE && start + i <= query; i++) {
            float score = q0 * ks[i][lane] + q1 * ks[i][lane + 32];
            for (int mask = 16; mask; mask /= 2) score += __shfl_xor_sync(0xffffffff, score, mask);
            float now = fmaxf(highest, score), keep = __expf(highest - now), p = __expf(score - now);
            sum = sum * keep + p;
            o0 = o0 * keep + p * vs[i][lane];
            o1 = o1 * keep + p * vs[i][lane + 32];
            highest = now;
        }
    }
    if (query < length) {
        out[query * D + lane] = o0 / sum;
        out[query * D + lane + 32] = o1 / sum;
    }
}
