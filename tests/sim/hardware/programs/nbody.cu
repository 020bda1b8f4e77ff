// All-pairs gravity: bodies pass through shared memory tile by tile.
#define TILE 64

__device__ float3 interact(float4 a, float4 b, float3 acc) {
    float3 r = make_float3(b.x - a.x, b.y - a.y, b.z - a.z);
    float distance = r.x * r.x + r.y * r.y + r.z * r.z + 0.01f;
    float inverse = rsqrtf(distance * distance * distance);
    float s = b.w * inverse;
    acc.x += r.x * s;
    acc.y += r.y * s;
    acc.z += r.z * s;
    return acc;
}

extern "C" __global__ void nbody(const float4 *positions, float4 *velocities, float dt, int n) {
    __shared__ float4 tile[TILE];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 mine = positions[i < n ? i : n - 1];
    float3 acc = {0.0f, 0.0f, 0.0f};
    for (int start = 0; start < n; start += TILE) {
        int j = start + threadIdx.x;
        tile[threadIdx.x] = j < n ? positions[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; k++) acc = interact(mine, tile[k], acc);
        __syncthreads();
    }
    if (i >= n) return;
    float4 v = velocities[i];
    v.x += acc.x * dt;
    v.y += acc.y * dt;
    v.z += acc.z * dt;
    velocities[i] = v;
}
