// Transfers between accounts under spin locks, taken in the order of their numbers so that no two threads deadlock.
extern "C" __global__ void transfer(int *balances, int *locks, const int *from, const int *to, const int *amounts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || from[i] == to[i]) return;
    int first = min(from[i], to[i]), second = max(from[i], to[i]);
    bool done = false;
    while (!done) {
        if (atomicCAS(&locks[first], 0, 1) == 0) {
            if (atomicCAS(&locks[second], 0, 1) == 0) {
                __threadfence();
                ((volatile int *)balances)[from[i]] -= amounts[i];
                ((volatile int *)balances)[to[i]] += amounts[i];
                __threadfence();
                atomicExch(&locks[second], 0);
                done = true;
            }
            atomicExch(&locks[first], 0);
        }
    }
}
