// Counts placements of N queens: each thread explores one choice of the first two rows, with a stack in local memory.
#define N 7

extern "C" __global__ void queens(unsigned int *total, unsigned int *per_thread) {
    int number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= N * N) return;
    int columns[N];
    columns[0] = number / N;
    columns[1] = number % N;
    int distance = columns[0] - columns[1];
    unsigned int found = 0;
    if (distance != 0 && distance != 1 && distance != -1) {
        int row = 2;
        columns[2] = -1;
        while (row >= 2) {
            bool placed = false;
            while (!placed && ++columns[row] < N) {
                placed = true;
                for (int r = 0; r < row; r++) {
                    int d = columns[row] - columns[r];
                    if (d == 0 || d == row - r || d == r - row) {
                        placed = false;
                        break;
                    }
                }
            }
            if (!placed) {
                row--;
            } else if (row == N - 1) {
                found++;
            } else {
                columns[++row] = -1;
            }
        }
    }
    per_thread[number] = found;
    if (found) atomicAdd(total, found);
}
