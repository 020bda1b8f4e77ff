// Merges sorted pairs of runs: each thread finds its place by binary search along a diagonal.
extern "C" __global__ void merge_runs(const int *in, int *out, int run, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int base = i / (2 * run) * (2 * run);
    const int *a = in + min(base, n), *b = in + min(base + run, n);
    int a_size = min(run, n - base), b_size = max(0, min(run, n - base - run));
    int diagonal = i - base, low = max(0, diagonal - b_size), high = min(diagonal, a_size);
    while (low < high) {
        int middle = (low + high) / 2;
        if (a[middle] <= b[diagonal - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    int j = diagonal - low;
    bool from_a = j >= b_size || (low < a_size && a[low] <= b[j]);
    out[i] = from_a ? a[low] : b[j];
}
