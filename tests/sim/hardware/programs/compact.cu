// Stream compaction: the leader of each warp reserves room for all of its lanes that keep a value.
extern "C" __global__ void compact(const int *in, int *out, int *count, int threshold, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int value = in[i];
    if (value > threshold) {
        unsigned int active = __activemask();
        int lane = threadIdx.x & 31, leader = __ffs(active) - 1;
        int base = 0;
        if (lane == leader) base = atomicAdd(count, __popc(active));
        base = __shfl_sync(active, base, leader);
        out[base + __popc(active & ((1u << lane) - 1))] = value;
    }
}
