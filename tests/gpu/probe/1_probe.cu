// Idea: the smallest kernels that show how a launch behaves; tests/gpu/test_launch.py says what each is for.
// Removes nothing: 1_probe.ptx beside this file is what NVRTC 12.8 makes of it, for machines that have none.

// y = factor * x.
extern "C" __global__ void scale(const float* __restrict__ x, float* __restrict__ y, float factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}

// Takes its time, then writes: whoever reads `out` too early sees the old value.
extern "C" __global__ void late(long long cycles, int* out, int value) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  *out = value;
}

// Turns the order of n floats round, by way of shared memory.
extern "C" __global__ void turn_round(const float* __restrict__ x, float* __restrict__ y, int n) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = row[n - 1 - i];
}

// As many parameters as a real kernel has, for the cost of a launch.
extern "C" __global__ void many(const float* a, const float* b, const float* c, float* y, int n, int m, float s, float t) {
  if (threadIdx.x == 0 && n < 0) y[0] = a[0] * s + b[0] * t + c[m];
}
