// A histogram of bytes: counted in shared memory first, then added to the result.
extern "C" __global__ void histogram(const unsigned char* x, int* counts, int n) {
  __shared__ int mine[256];
  mine[threadIdx.x] = 0;
  BARRIER_AFTER_CLEAR;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) COUNT;
  BARRIER_AFTER_COUNT;
  atomicAdd(counts + threadIdx.x, mine[(threadIdx.x + 1) % 256 ? threadIdx.x : 255]);
}
