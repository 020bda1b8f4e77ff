// Each warp adds up 64 numbers in shared memory, without a barrier of the whole block.
extern "C" __global__ void warp_tree(const float* x, float* sums) {
  __shared__ QUALIFIER float shared[4][64];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  QUALIFIER float* mine = shared[warp];
  mine[lane] = x[blockIdx.x * 256 + warp * 64 + lane];
  mine[lane + 32] = x[blockIdx.x * 256 + warp * 64 + lane + 32];
  SYNC;
  for (int distance = 32; distance > 0; distance /= 2) {
    float sum = 0.0f;
    if (lane < distance) sum = mine[lane] + mine[lane + distance];
    SYNC;
    if (lane < distance) mine[lane] = sum;
    SYNC;
  }
  if (lane == 0) sums[blockIdx.x * 4 + warp] = mine[0];
}
