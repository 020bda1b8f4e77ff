// One step of heat diffusion on a grid: 5-point stencil over a shared tile with halo, coefficients in constant memory.
#define BX 16
#define BY 16
__constant__ float weights[2] = {0.5f, 0.125f};

extern "C" __global__ void stencil(const float *__restrict__ in, float *__restrict__ out, int nx, int ny) {
    __shared__ float tile[BY + 2][BX + 2];
    int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
    int cx = min(x, nx - 1), cy = min(y, ny - 1);
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    tile[ty][tx] = in[cy * nx + cx];
    if (threadIdx.x == 0) tile[ty][0] = in[cy * nx + max(cx - 1, 0)];
    if (threadIdx.x == BX - 1) tile[ty][BX + 1] = in[cy * nx + min(cx + 1, nx - 1)];
    if (threadIdx.y == 0) tile[0][tx] = in[max(cy - 1, 0) * nx + cx];
    if (threadIdx.y == BY - 1) tile[BY + 1][tx] = in[min(cy + 1, ny - 1) * nx + cx];
    __syncthreads();
    if (x >= nx || y >= ny) return;
    float centre = tile[ty][tx];
    float left = x > 0 ? tile[ty][tx - 1] : centre, right = x < nx - 1 ? tile[ty][tx + 1] : centre;
    float up = y > 0 ? tile[ty - 1][tx] : centre, down = y < ny - 1 ? tile[ty + 1][tx] : centre;
    out[y * nx + x] = weights[0] * centre + weights[1] * (left + right + up + down);
}
