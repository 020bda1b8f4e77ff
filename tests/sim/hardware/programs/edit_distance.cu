// Edit distance of word pairs: anti-diagonals in shared memory, one pair a block.
#define LONGEST 32

extern "C" __global__ void edit_distance(const char *left, const char *right, const int *left_size, const int *right_size, int *result) {
    __shared__ int diagonals[3][LONGEST + 1];
    const char *a = left + blockIdx.x * LONGEST, *b = right + blockIdx.x * LONGEST;
    int n = left_size[blockIdx.x], m = right_size[blockIdx.x], i = threadIdx.x;
    for (int d = 0; d <= n + m; d++) {
        int j = d - i;
        if (i <= n && j >= 0 && j <= m) {
            int cost;
            if (i == 0 || j == 0) {
                cost = i + j;
            } else {
                int change = diagonals[(d + 1) % 3][i - 1] + (a[i - 1] != b[j - 1]);
                int remove = diagonals[(d + 2) % 3][i - 1] + 1;
                int insert = diagonals[(d + 2) % 3][i] + 1;
                cost = min(change, min(remove, insert));
            }
            diagonals[d % 3][i] = cost;
            if (i == n && j == m) result[blockIdx.x] = cost;
        }
        __syncthreads();
    }
}
