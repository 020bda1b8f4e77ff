// Split-K: several blocks share the outputs of one stretch. Each leaves fp32 partial sums in memory, and the last one to
// arrive adds them up in a fixed order: the result does not depend on who came when.
#pragma once

// True, in all threads of the block, for the last of ``expected`` blocks to call it with this counter. What any of them
// stored before its call may then be read. The counter is 0 before the launch and again after it.
__device__ __forceinline__ bool last_to_arrive(int* counter, int expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();  // all of the block's stores are done and visible before it is counted
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// The same for the gridDim.y blocks of each blockIdx.x.
__device__ __forceinline__ bool last_to_arrive(int* arrivals) {
  return last_to_arrive(arrivals + blockIdx.x, static_cast<int>(gridDim.y));
}
