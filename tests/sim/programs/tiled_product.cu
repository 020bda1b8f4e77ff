// c = a * b for n x n floats, one 16 x 16 tile per block; the next tiles are loaded while the present ones are used.
#define TILE 16
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int n) {
  __shared__ float left[2][TILE][TILE], right[2][TILE][TILE];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
  left[0][y][x] = a[row * n + x];
  right[0][y][x] = b[y * n + column];
  __syncthreads();
  float sum = 0.0f;
  for (int tile = 0; tile < n / TILE; tile++) {
    const int now = tile % 2, next = (tile + 1) % 2, start = (tile + 1) * TILE;
    if (start < n) {
      left[next][y][x] = a[row * n + start + x];
      right[next][y][x] = b[(start + y) * n + column];
    }
    for (int k = 0; k < TILE; k++) sum += left[now][y][k] * right[now][k][x];
    BARRIER;
  }
  c[row * n + column] = sum;
}
