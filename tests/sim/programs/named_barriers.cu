// Two warps make numbers, two use them; they meet at two barriers of their own, round after round.
extern "C" __global__ void producers(const int* x, int* y, int rounds) {
  __shared__ int slot[64];
  const int thread = threadIdx.x;
  for (int round = 0; round < rounds; round++) {
    if (thread < 64) {
      if (round > 0) asm volatile("bar.sync 2, 128;" ::: "memory");
      slot[thread] = x[round * 64 + thread];
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    } else {
      asm volatile(WAIT ::: "memory");
      y[round * 64 + thread - 64] = slot[127 - thread];
      if (round < rounds - 1) asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
  }
}
