// Kernels of test_memory.py.
extern "C" __global__ void widths(const unsigned char* a, unsigned char* o, int n) {
    int i = threadIdx.x;
    if (i < n) {
        o[i] = a[i];
        ((short*)(o + n))[i] = ((const short*)a)[i];
        ((int*)(o + 3 * n))[i] = ((const int*)a)[i];
        ((long long*)(o + 7 * n))[i] = ((const long long*)a)[i];
        ((short2*)(o + 15 * n))[i] = ((const short2*)a)[i];
        ((float2*)(o + 19 * n))[i] = ((const float2*)a)[i];
        ((int4*)(o + 27 * n + 0))[i] = ((const int4*)a)[i];
        ((double2*)(o + 43 * n))[i] = ((const double2*)a)[i];
        ((uchar4*)(o + 59 * n))[i] = ((const uchar4*)a)[i];
    }
}
extern "C" __global__ void transpose(const float* a, float* o, int rows, int columns) {
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = a[y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x; y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) o[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void shared_vectors(const float4* a, float* o) {
    __shared__ float4 s[64];
    s[threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    float4 v = s[63 - threadIdx.x];
    float2 w = ((float2*)s)[threadIdx.x];
    o[blockIdx.x * 64 + threadIdx.x] = v.x + 2 * v.y + 4 * v.z + 8 * v.w + 16 * w.x + 32 * w.y;
}
extern "C" __global__ void local_array(const int* a, int* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, v[16];
    for (int k = 0; k < 16; k++) v[(k * 5 + a[i]) & 15] = a[i] + k;
    int r = 0;
    for (int k = 0; k < n; k++) { r = r * 3 + v[(r + k) & 15]; v[k & 15] ^= r; }
    o[i] = r;
}
extern "C" __global__ void generic(int* a, int* o, int how) {
    __shared__ int s[64];
    int mine[4] = {1, 2, 3, (int)threadIdx.x};
    int i = threadIdx.x;
    s[i] = 1000 + i;
    __syncthreads();
    int* p = (i + how) % 3 == 0 ? a + i : (i + how) % 3 == 1 ? s + i : mine + (i & 3);
    *p += 5;
    o[i] = *p + (__isShared(p) ? 100000 : 0) + (__isGlobal(p) ? 200000 : 0) + (__isLocal(p) ? 300000 : 0);
}
extern "C" __global__ void uneven(const int* a, const int* b, int* o) {   // lanes in different buffers
    const int* p = threadIdx.x & 1 ? a : b;
    o[threadIdx.x] = p[threadIdx.x / 2];
}
extern "C" __global__ void same_address(int* o, int* s_out) {
    __shared__ int s[2];
    o[blockIdx.x] = threadIdx.x;
    s[0] = threadIdx.x;
    __syncthreads();
    s_out[blockIdx.x] = s[0];
}
struct Padded { char c; int x; short s; };
extern "C" __global__ void padded(int* o) {
    __shared__ Padded s[32];
    s[threadIdx.x].c = 'a' + threadIdx.x;
    s[threadIdx.x].x = threadIdx.x;
    s[threadIdx.x].s = threadIdx.x;
    __syncthreads();
    // The struct as words, gaps included, as a compiler may copy it.
    const int* words = (const int*)&s[threadIdx.x];
    int first = words[0], third = words[2];
    o[threadIdx.x] = (first & 255) + ((words[1] + (third & 0xffff)) << 8);
}
