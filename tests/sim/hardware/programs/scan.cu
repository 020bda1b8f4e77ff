// Work-efficient exclusive scan (up-sweep, down-sweep) of blocks, then of the block sums.
extern "C" __global__ void scan_blocks(int *data, int *sums, int n) {
    extern __shared__ int temp[];
    int thread = threadIdx.x;
    int start = 2 * blockIdx.x * blockDim.x;
    int left = start + thread, right = start + thread + blockDim.x;
    temp[thread] = left < n ? data[left] : 0;
    temp[thread + blockDim.x] = right < n ? data[right] : 0;
    int offset = 1, length = 2 * blockDim.x;
    for (int d = length >> 1; d > 0; d >>= 1) {
        __syncthreads();
        if (thread < d) {
            int a = offset * (2 * thread + 1) - 1, b = offset * (2 * thread + 2) - 1;
            temp[b] += temp[a];
        }
        offset *= 2;
    }
    if (thread == 0) {
        if (sums) sums[blockIdx.x] = temp[length - 1];
        temp[length - 1] = 0;
    }
    for (int d = 1; d < length; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (thread < d) {
            int a = offset * (2 * thread + 1) - 1, b = offset * (2 * thread + 2) - 1;
            int t = temp[a];
            temp[a] = temp[b];
            temp[b] += t;
        }
    }
    __syncthreads();
    if (left < n) data[left] = temp[thread];
    if (right < n) data[right] = temp[thread + blockDim.x];
}

extern "C" __global__ void add_sums(int *data, const int *sums, int n) {
    int i = 2 * blockIdx.x * blockDim.x + threadIdx.x;
    int sum = sums[blockIdx.x];
    if (i < n) data[i] += sum;
    if (i + blockDim.x < n) data[i + blockDim.x] += sum;
}
