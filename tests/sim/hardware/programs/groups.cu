// Sums over tiles of 8 and of 32 threads, votes, and blocks that are no multiple of a warp.
template <int SIZE>
__device__ int tile_sum(int value) {
    for (int offset = SIZE / 2; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffff, value, offset, SIZE);
    return value;
}

extern "C" __global__ void group_sums(const int *in, int *tiles, int *warps, int *flags, int n) {
    __shared__ int total;
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    int value = i < n ? in[i] : 0;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    int sum = tile_sum<8>(value);
    if (lane % 8 == 0) tiles[i / 8] = sum;
    sum = tile_sum<32>(value);
    if (lane == 0) {
        warps[i / 32] = sum;
        atomicAdd(&total, sum);
    }
    __syncthreads();
    unsigned int mine = 0xffu << (lane & 24);
    bool any = __any_sync(mine, value > 90), all = __all_sync(mine, value > -90);
    if (i < n) flags[i] = any + 2 * all + 4 * (total > 0);
}

extern "C" __global__ void odd_blocks(const int *in, int *out, int n) {  // blocks of 50 x 3 threads
    __shared__ int row[3];
    int x = threadIdx.x, y = threadIdx.y, i = blockIdx.x * 150 + y * 50 + x;
    if (x == 0) row[y] = 0;
    __syncthreads();
    if (i < n && in[i] > 0) atomicAdd(&row[y], in[i]);
    int votes = __syncthreads_count(i < n && in[i] > 0);
    if (i < n) out[i] = row[y] * 1000 + votes;
}
