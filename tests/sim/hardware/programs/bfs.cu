// Breadth-first search: one level a launch, the next frontier gathered with an atomic counter.
extern "C" __global__ void bfs_level(const int *starts, const int *neighbours, int *distance, const int *frontier,
                                     const int *frontier_size, int *next, int *next_size, int level) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < *frontier_size; i += gridDim.x * blockDim.x) {
        int node = frontier[i];
        for (int e = starts[node]; e < starts[node + 1]; e++) {
            int other = neighbours[e];
            if (atomicCAS(&distance[other], -1, level) == -1) next[atomicAdd(next_size, 1)] = other;
        }
    }
}
