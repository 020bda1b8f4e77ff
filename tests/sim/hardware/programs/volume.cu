// A 3D box filter over a volume, with a three-dimensional grid and a function object as a template parameter.
struct Clamp {
    int nx, ny, nz;
    __device__ int operator()(int x, int y, int z) const {
        x = max(0, min(x, nx - 1));
        y = max(0, min(y, ny - 1));
        z = max(0, min(z, nz - 1));
        return (z * ny + y) * nx + x;
    }
};

template <class Index>
__device__ int box(const short *in, const Index &index, int x, int y, int z) {
    int sum = 0;
    for (int dz = -1; dz <= 1; dz++)
        for (int dy = -1; dy <= 1; dy++)
            for (int dx = -1; dx <= 1; dx++) sum += in[index(x + dx, y + dy, z + dz)];
    return sum;
}

extern "C" __global__ void blur(const short *in, short *out, int nx, int ny, int nz) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    Clamp index{nx, ny, nz};
    out[index(x, y, z)] = (short)(box(in, index, x, y, z) / 27);
}
